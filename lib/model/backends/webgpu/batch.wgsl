// Begins and ends a step.

// Copies the current batch's images, (rows, columns), to the operation's result.
fn take_batch(operation: Operation, group: u32, groups: u32, lane: u32) {
  let first = first_image() * operation.columns;
  let low = arrayLength(&images_low);
  for (var place = group * LANES + lane; place < operation.rows * operation.columns; place += groups * LANES) {
    let pixel = first + place;
    if pixel < low {
      memory[operation.result + place] = images_low[pixel];
    } else {
      memory[operation.result + place] = images_high[pixel - low];
    }
  }
}

var<workgroup> sums: array<vec2f, LANES>;

// Sums the losses and correct classifications of the batch, and advances to the next batch; the first follows the last.
// Runs in one workgroup.
fn end_step(operation: Operation, lane: u32) {
  var sum = vec2f();  // of losses, and of correctly classified images
  for (var image = lane; image < operation.rows; image += LANES) {
    sum += vec2f(memory[operation.losses + image], memory[operation.losses + operation.rows + image]);
  }
  sums[lane] = sum;
  workgroupBarrier();
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    if lane < half {
      sums[lane] += sums[lane + half];
    }
    workgroupBarrier();
  }
  if lane == 0u {
    let done = schedule[0];
    results[2u * done] = sums[0].x / f32(operation.rows);
    results[2u * done + 1u] = sums[0].y;
    schedule[0] = (done + 1u) % (arrayLength(&schedule) - 1u);
  }
}
