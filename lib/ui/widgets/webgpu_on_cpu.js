// Executes the same programs on the reader's processor: reimplements each kernel of `lib/model/backends/webgpu/*.wgsl` on typed
// arrays. Runs in a worker, on one core. Its two ways differ in products, which dominate a step's time: `javascript`, without
// vectors, sums in float64 and rounds results to float32; `simd` is `webgpu_simd.wat`.
const [STORE, RELU, RELU_GRADIENT, DESCEND] = [0, 1, 2, 3];
const SPAN = 4; // rows and columns of a result tile, whose sums stay in registers
// The server prepends `SIMD`: that file, assembled, in base64.
const PAGE_BYTES = 2 ** 16; // WebAssembly's page size

class Device {
  static async open(kernels) {
    const device = new Device();
    return Object.assign(device, { kernels, facts: null });
  }

  async images(pixels, labels) {
    return { pixels: asFloats(pixels), labels: Uint32Array.from(labels) };
  }

  // The way to evaluate a training that runs in this way.
  evaluatedBy(way) {
    return way;
  }

  async copy(numbers) {
    if (!(this.copied?.length >= numbers.length)) this.copied = new Float32Array(numbers.length);
    this.copied.set(numbers);
    numbers.set(this.copied.subarray(0, numbers.length));
  }

  // The module of the way `simd`, compiled on first use.
  async simd() {
    if (!self.WebAssembly) throw new Failure("no WebAssembly");
    const bytes = Uint8Array.from(atob(SIMD), (character) => character.charCodeAt(0));
    try {
      return (this.compiled ??= await WebAssembly.compile(bytes));
    } catch (error) {
      throw new Failure("no WebAssembly", error.message);
    }
  }

  async execution(program, images, mostSteps) {
    const { fields, nothing } = this.kernels;
    const operations = program.operations.map(({ kernel, words }) => {
      const named = Object.fromEntries(fields.map((field, index) => [field, words[index]]));
      return { ...named, has: (field) => named[field] !== nothing, run: KERNELS[kernel] };
    });
    const one = new Execution();
    const [memory, shared] = memoryOf(program.memory_bytes + scratchBytes(operations));
    return Object.assign(one, {
      device: this, program, images, operations, shared,
      memory: new Float32Array(memory, 0, program.memory_bytes / 4),
      found: new Float32Array(2 * mostSteps),
      starts: [0], done: 0, multiply: product,
    });
  }
}

// Memory that both ways share; without WebAssembly, memory for JavaScript alone.
function memoryOf(bytes) {
  if (!self.WebAssembly) return [new ArrayBuffer(bytes), null];
  const shared = new WebAssembly.Memory({ initial: Math.ceil(bytes / PAGE_BYTES) });
  return [shared.buffer, shared];
}

// Bytes that the largest product of `webgpu_simd.wat` needs after a program's memory.
function scratchBytes(operations) {
  const products = operations.filter(({ run }) => run === KERNELS.product || run === KERNELS.product_and_loss);
  return Math.max(0, ...products.map(({ rows, inner }) => 176 + 32 * inner + 16 * inner * Math.ceil(rows / 4)));
}

class Execution {
  async schedule(starts) {
    [this.starts, this.done] = [starts, 0];
  }

  async results(n) {
    return this.found.slice(0, 2 * n);
  }

  region(name) {
    const { first, shape } = this.program.regions[name];
    return this.memory.subarray(first, first + shape[0] * shape[1]);
  }

  write(region, numbers) {
    this.region(region).set(numbers);
  }

  async read(region) {
    return this.region(region).slice();
  }

  copyParameters(other) {
    this.memory.set(other.memory.subarray(0, this.program.parameter_bytes / 4));
  }

  // Nothing is launched: the ways differ only in how they compute products.
  async way(name) {
    const multiply = name === "simd" ? await this.withVectors() : product;
    return async (n) => {
      this.multiply = multiply;
      for (let step = 0; step < n; step++) for (const operation of this.operations) operation.run(this, operation);
    };
  }

  async withVectors() {
    const module = await this.device.simd();
    const imports = { program: { memory: this.shared, scratch: this.program.memory_bytes } };
    const { exports } = await WebAssembly.instantiate(module, imports);
    return (_, o) => {
      const at = (field) => (o.has(field) ? 4 * o[field] : -1);
      exports.product(
        o.rows, o.columns, o.inner,
        at("left"), at("left_by_row"), at("left_by_column"), at("right"), at("right_by_row"), at("right_by_column"),
        o.has("row_of_ones") ? o.row_of_ones : -1, at("biases"), at("result"), o.ending, at("mask"), at("rate"),
      );
    };
  }

  destroy() {}
}

const KERNELS = { batch, product: multiplied, product_and_loss, elements, loss, end };

function multiplied(execution, o) {
  execution.multiply(execution, o);
}

function batch({ memory, images, starts, done }, o) {
  const first = starts[done] * PIXELS;
  memory.set(images.pixels.subarray(first, first + o.rows * PIXELS), o.result);
}

function endElement(memory, o, row, column, value) {
  const place = o.result + row * o.columns + column;
  switch (o.ending) {
    case RELU: memory[place] = value > 0 || value !== value ? value : 0; break; // not max(), to match the GPU
    case RELU_GRADIENT: memory[place] = memory[o.mask + row * o.columns + column] > 0 ? value : 0; break;
    case DESCEND: memory[place] -= memory[o.rate] * value; break;
    default: memory[place] = value;
  }
}

function elements({ memory }, o) {
  const biased = o.has("biases");
  for (let row = 0, place = 0; row < o.rows; row++)
    for (let column = 0; column < o.columns; column++, place++)
      endElement(memory, o, row, column, memory[o.left + place] + (biased ? memory[o.biases + column] : 0));
}

// Packs the rows of a factor in groups of SPAN, each laid out in the order that multiplyTile() reads: by k.
function packed(length, inner, at) {
  const panels = new Float64Array(Math.ceil(length / SPAN) * SPAN * inner);
  for (let one = 0; one < length; one++) {
    const start = (one - (one % SPAN)) * inner + (one % SPAN);
    for (let k = 0; k < inner; k++) panels[start + k * SPAN] = at(one, k);
  }
  return panels;
}

function product({ memory }, o) {
  const { rows, columns, inner } = o;
  const left = packed(rows, inner, (row, k) =>
    row === o.row_of_ones ? 1 : memory[o.left + row * o.left_by_row + k * o.left_by_column]);
  const right = packed(columns, inner, (column, k) => memory[o.right + k * o.right_by_row + column * o.right_by_column]);
  const biased = o.has("biases");
  const sums = new Float64Array(SPAN * SPAN);
  for (let column = 0; column < columns; column += SPAN)
    for (let row = 0; row < rows; row += SPAN) {
      multiplyTile(left, row * inner, right, column * inner, inner, sums);
      for (let r = 0; r < Math.min(SPAN, rows - row); r++)
        for (let c = 0; c < Math.min(SPAN, columns - column); c++)
          endElement(memory, o, row + r, column + c, sums[r * SPAN + c] + (biased ? memory[o.biases + column + c] : 0));
    }
}

// Keeps sixteen sums in registers: reads eight numbers for thirty-two operations.
function multiplyTile(left, l, right, r, inner, sums) {
  let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
  let c0 = 0, c1 = 0, c2 = 0, c3 = 0, d0 = 0, d1 = 0, d2 = 0, d3 = 0;
  for (let k = 0; k < inner; k++, l += SPAN, r += SPAN) {
    const w = right[r], x = right[r + 1], y = right[r + 2], z = right[r + 3];
    const a = left[l], b = left[l + 1], c = left[l + 2], d = left[l + 3];
    a0 += a * w; a1 += a * x; a2 += a * y; a3 += a * z;
    b0 += b * w; b1 += b * x; b2 += b * y; b3 += b * z;
    c0 += c * w; c1 += c * x; c2 += c * y; c3 += c * z;
    d0 += d * w; d1 += d * x; d2 += d * y; d3 += d * z;
  }
  sums[0] = a0; sums[1] = a1; sums[2] = a2; sums[3] = a3; sums[4] = b0; sums[5] = b1; sums[6] = b2; sums[7] = b3;
  sums[8] = c0; sums[9] = c1; sums[10] = c2; sums[11] = c3; sums[12] = d0; sums[13] = d1; sums[14] = d2; sums[15] = d3;
}

function product_and_loss(execution, o) {
  multiplied(execution, o);
  loss(execution, o);
}

function loss({ memory, images, starts, done }, o) {
  for (let image = 0; image < o.rows; image++) {
    const logits = o.result + image * o.columns;
    let [largest, chosen, total] = [memory[logits], 0, 0];
    for (let k = 1; k < o.columns; k++) if (memory[logits + k] > largest) [largest, chosen] = [memory[logits + k], k];
    for (let k = 0; k < o.columns; k++) total += Math.exp(memory[logits + k] - largest);
    const label = images.labels[starts[done] + image];
    let found = 0;
    for (let k = 0; k < o.columns; k++) {
      const shifted = memory[logits + k] - largest;
      if (k === label) found = Math.log(total) - shifted;
      memory[o.gradient + image * o.columns + k] = (Math.exp(shifted) / total - (k === label ? 1 : 0)) / o.rows;
    }
    memory[o.losses + image] = found;
    memory[o.losses + o.rows + image] = chosen === label ? 1 : 0;
  }
}

function end(execution, o) {
  let [sum, correct] = [0, 0];
  for (let image = 0; image < o.rows; image++) {
    sum += execution.memory[o.losses + image];
    correct += execution.memory[o.losses + o.rows + image];
  }
  execution.found[2 * execution.done] = sum / o.rows;
  execution.found[2 * execution.done + 1] = correct;
  execution.done += 1;
}
