// Each operation as a separate kernel that the host launches.

@group(1) @binding(0) var<uniform> operation: Operation;

@compute @workgroup_size(LANES)
fn batch(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  take_batch(operation, group.x, groups.x, lane);
}

@compute @workgroup_size(LANES)
fn product(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  multiply(operation, group.x, groups.x, lane);
}

@compute @workgroup_size(LANES)
fn product_and_loss(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  multiply_and_find_losses(operation, group.x, groups.x, lane);
}

@compute @workgroup_size(LANES)
fn elements(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  end_elements(operation, group.x, groups.x, lane);
}

@compute @workgroup_size(LANES)
fn loss(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  find_losses(operation, group.x, groups.x, lane);
}

@compute @workgroup_size(LANES)
fn end(@builtin(local_invocation_index) lane: u32) {
  end_step(operation, lane);
}
