// Executes programs on the reader's GPU, like `lib/model/backends/with_webgpu.py` in Python. Runs in a worker.
const MOST_STEPS_IN_A_SUBMISSION = 256;

class Device {
  // Opens the adapter; throws a Failure if the browser has none.
  static async open(kernels) {
    if (!navigator.gpu) throw new Failure("not offered");
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) throw new Failure("no adapter");
    const device = new Device();
    Object.assign(device, { kernels, modules: {}, pipelines: {}, trouble: null });
    const info = adapter.info ?? {}; // older browsers lack it
    const [vendor, architecture, model, description] = ["vendor", "architecture", "device", "description"].map(
      (name) => String(info[name] ?? "").slice(0, 100),
    );
    const fallback = Boolean(info.isFallbackAdapter ?? adapter.isFallbackAdapter);
    const limits = {};
    for (const name of ["maxStorageBufferBindingSize", "maxBufferSize"]) limits[name] = adapter.limits[name];
    device.largest = Math.min(...Object.values(limits));
    device.facts = { vendor, architecture, model, description, fallback, largest_bytes: device.largest };
    device.mostTurns = fallback ? kernels.software_turns : Infinity;
    device.gpu = await adapter.requestDevice({ requiredLimits: limits });
    device.gpu.lost.then((lost) => {
      device.trouble = new Failure("lost", lost.message || lost.reason);
      self.postMessage({ lost: device.trouble.message });
    });
    device.gpu.addEventListener("uncapturederror", (event) => {
      event.preventDefault();
      device.trouble ??= new Failure("refused by the driver", event.error.message);
    });
    const layout = (types) => device.gpu.createBindGroupLayout({
      entries: types.map((buffer, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer })),
    });
    device.shared = layout(Object.values(kernels.buffers).map((type) => ({ type })));
    device.oneOperation = layout([{ type: "uniform", hasDynamicOffset: true }]);
    device.allOperations = layout([{ type: "read-only-storage" }, { type: "uniform" }]);
    return device;
  }

  // Compiles one of the two modules of kernels. If that fails, throws a Failure with the driver's messages.
  async module(name) {
    this.gpu.pushErrorScope("validation");
    const module = this.gpu.createShaderModule({ label: name, code: this.kernels.sources[name] });
    await this.gpu.popErrorScope(); // getCompilationInfo() gives the same errors, with lines
    const errors = (await module.getCompilationInfo()).messages.filter(({ type }) => type === "error");
    if (!errors.length) return module;
    throw new Failure("shader", errors.map(({ lineNum, message }) => `${name}.wgsl:${lineNum}: ${message}`).join("; "));
  }

  // The pipeline of an entry point of `dispatched`, or of `steps`, compiled on first use.
  async pipeline(kernel) {
    if (this.pipelines[kernel]) return this.pipelines[kernel];
    const name = kernel === "steps" ? "whole_steps" : "dispatched";
    const own = kernel === "steps" ? this.allOperations : this.oneOperation;
    const module = await (this.modules[name] ??= this.module(name));
    const layout = this.gpu.createPipelineLayout({ bindGroupLayouts: [this.shared, own] });
    try {
      this.pipelines[kernel] = await this.gpu.createComputePipelineAsync({ layout, compute: { module, entryPoint: kernel } });
    } catch (error) {
      this.check();
      throw new Failure("shader", error.message);
    }
    return this.pipelines[kernel];
  }

  // Allocates a buffer of a size in bytes, or with contents. Allocates nothing beyond the adapter's limit.
  async buffer(contents, usage = GPUBufferUsage.STORAGE) {
    const bytes = Math.max(16, contents.byteLength ?? contents);
    if (bytes > this.largest) throw new Failure("too large", `${bytes} of ${this.largest}`, { needs: bytes, allows: this.largest });
    for (const kind of ["validation", "out-of-memory"]) this.gpu.pushErrorScope(kind);
    const made = this.gpu.createBuffer({ size: bytes, usage: usage | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST });
    const errors = [await this.gpu.popErrorScope(), await this.gpu.popErrorScope()].filter(Boolean);
    if (errors.length) throw new Failure("memory", errors[0].message, { needs: bytes, allows: this.largest });
    if (contents.byteLength) this.gpu.queue.writeBuffer(made, 0, contents);
    return made;
  }

  async read(buffer, first, bytes) {
    const staging = this.gpu.createBuffer({ size: bytes, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const encoder = this.gpu.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, first, staging, 0, bytes);
    this.gpu.queue.submit([encoder.finish()]);
    try {
      await staging.mapAsync(GPUMapMode.READ);
    } catch (error) {
      this.check();
      throw error;
    }
    const copied = new Float32Array(staging.getMappedRange().slice(0));
    staging.destroy();
    return copied;
  }

  async wait() {
    await this.gpu.queue.onSubmittedWorkDone();
    this.check();
  }

  // Throws a failure that the driver has reported. A lost device stays lost.
  check() {
    const { trouble } = this;
    if (trouble?.kind !== "lost") this.trouble = null;
    if (trouble) throw trouble;
  }

  group(layout, buffers, size) {
    const entries = buffers.map((buffer, binding) => ({ binding, resource: size ? { buffer, size } : { buffer } }));
    return this.gpu.createBindGroup({ layout, entries });
  }

  // Pixels (n × 784) as float32, in two halves because one buffer would exceed many adapters' limit, and labels.
  async images(pixels, labels) {
    const half = Math.ceil(labels.length / 2) * PIXELS;
    return {
      low: await this.buffer(asFloats(pixels.subarray(0, half))),
      high: await this.buffer(asFloats(pixels.subarray(half))),
      labels: await this.buffer(Uint32Array.from(labels)),
    };
  }

  // The way to evaluate, however the training runs.
  evaluatedBy() {
    return "one_submission";
  }

  // Copies numbers to the device and back.
  async copy(numbers) {
    this.copied ??= await this.buffer(16);
    if (this.copied.size < numbers.byteLength) {
      this.copied.destroy();
      this.copied = await this.buffer(numbers.byteLength);
    }
    this.gpu.queue.writeBuffer(this.copied, 0, numbers);
    await this.read(this.copied, 0, numbers.byteLength);
  }

  async execution(program, images, mostSteps) {
    const one = new Execution();
    Object.assign(one, { device: this, program, buffers: [] });
    try {
      await this.fill(one, images, mostSteps);
    } catch (failure) {
      one.destroy(); // buffers allocated before the failure
      throw failure;
    }
    return one;
  }

  async fill(one, images, mostSteps) {
    const { program, buffers } = one;
    const buffer = async (...asked) => {
      buffers.push(await this.buffer(...asked));
      return buffers.at(-1);
    };
    one.memory = await buffer(program.memory_bytes);
    one.scheduled = await buffer(4 * (1 + mostSteps));
    one.found = await buffer(8 * mostSteps);
    const words = new Uint32Array((program.operations.length * this.kernels.operation_bytes) / 4);
    program.operations.forEach(({ words: some }, index) => words.set(some, (index * this.kernels.operation_bytes) / 4));
    const operations = await buffer(words, GPUBufferUsage.STORAGE | GPUBufferUsage.UNIFORM);
    one.nSteps = await buffer(16, GPUBufferUsage.UNIFORM);
    one.sharedGroup = this.group(this.shared, [one.memory, images.low, images.high, images.labels, one.scheduled, one.found]);
    one.oneGroup = this.group(this.oneOperation, [operations], this.kernels.operation_bytes);
    one.allGroup = this.group(this.allOperations, [operations, one.nSteps]);
  }
}

class Execution {
  // Sets the first image of each batch for the next steps, and restarts their results at index 0.
  async schedule(starts) {
    this.device.gpu.queue.writeBuffer(this.scheduled, 0, Uint32Array.of(0, ...starts));
    await this.device.wait();
  }

  // The last steps' results, interleaved: mean loss, number of correctly classified images.
  results(n) {
    return this.device.read(this.found, 0, 8 * n);
  }

  write(region, numbers) {
    this.device.gpu.queue.writeBuffer(this.memory, 4 * this.program.regions[region].first, numbers);
  }

  read(region) {
    const { first, shape } = this.program.regions[region];
    return this.device.read(this.memory, 4 * first, 4 * shape[0] * shape[1]);
  }

  copyParameters(other) {
    const encoder = this.device.gpu.createCommandEncoder();
    encoder.copyBufferToBuffer(other.memory, 0, this.memory, 0, this.program.parameter_bytes);
    this.device.gpu.queue.submit([encoder.finish()]);
  }

  // Compiles the pipelines of a way of launching. Returns a function that launches n steps and waits for them.
  async way(name) {
    const kernels = name === "one_kernel" ? ["steps"] : this.program.operations.map(({ kernel }) => kernel);
    const compiled = [...new Set(kernels)].map(async (kernel) => [kernel, await this.device.pipeline(kernel)]);
    const pipelines = Object.fromEntries(await Promise.all(compiled));
    const launch = (pass, index) => {
      pass.setPipeline(pipelines[this.program.operations[index].kernel]);
      pass.setBindGroup(1, this.oneGroup, [index * this.device.kernels.operation_bytes]);
      pass.dispatchWorkgroups(this.program.operations[index].groups);
    };
    const launchAll = (pass, steps) => {
      for (let step = 0; step < steps; step++) this.program.operations.forEach((_, index) => launch(pass, index));
    };
    const wait = () => this.device.wait();
    const most = Math.floor(this.device.mostTurns / this.program.turns); // steps per kernel
    if (name === "one_kernel" && !most) throw new Failure("too much for one kernel");
    return {
      waiting_after_each_operation: async (n) => {
        for (let step = 0; step < n; step++)
          for (let index = 0; index < this.program.operations.length; index++) {
            this.submit((pass) => launch(pass, index));
            await wait();
          }
      },
      one_submission_a_step: async (n) => {
        for (let step = 0; step < n; step++) this.submit((pass) => launchAll(pass, 1));
        await wait();
      },
      one_submission: async (n) => {
        for (let left = n; left > 0; left -= MOST_STEPS_IN_A_SUBMISSION)
          this.submit((pass) => launchAll(pass, Math.min(left, MOST_STEPS_IN_A_SUBMISSION)));
        await wait();
      },
      one_kernel: async (n) => {
        for (let left = n; left > 0; left -= most) {
          this.device.gpu.queue.writeBuffer(this.nSteps, 0, Uint32Array.of(Math.min(left, most), 0, 0, 0));
          this.submit((pass) => {
            pass.setPipeline(pipelines.steps);
            pass.setBindGroup(1, this.allGroup);
            pass.dispatchWorkgroups(1);
          });
        }
        await wait();
      },
    }[name];
  }

  submit(launches) {
    const encoder = this.device.gpu.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setBindGroup(0, this.sharedGroup);
    launches(pass);
    pass.end();
    this.device.gpu.queue.submit([encoder.finish()]);
  }

  destroy() {
    for (const buffer of this.buffers) buffer.destroy();
  }
}
