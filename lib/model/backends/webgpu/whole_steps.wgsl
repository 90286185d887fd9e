// Whole steps as one kernel: one workgroup executes the list of operations that the host would otherwise launch.

@group(1) @binding(0) var<storage, read> operations: array<Operation>;
@group(1) @binding(1) var<uniform> n_steps: u32;

@compute @workgroup_size(LANES)
fn steps(@builtin(local_invocation_index) lane: u32) {
  for (var step = 0u; step < n_steps; step++) {
    for (var index = 0u; index < arrayLength(&operations); index++) {
      let operation = operations[index];
      switch operation.kernel {  // in the order of `KERNELS` in __init__.py
        case 0u: { take_batch(operation, 0u, 1u, lane); }
        case 1u: { multiply(operation, 0u, 1u, lane); }
        case 2u: { multiply_and_find_losses(operation, 0u, 1u, lane); }
        case 3u: { end_elements(operation, 0u, 1u, lane); }
        case 4u: { find_losses(operation, 0u, 1u, lane); }
        default: { end_step(operation, lane); }
      }
      storageBarrier();
    }
  }
}
