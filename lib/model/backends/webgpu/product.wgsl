// The product of two matrices, with an ending for each of its elements.
//
// A step needs three forms: inputs times weights, the transposed inputs times a gradient, and a gradient times the
// transposed weights. They differ only in the distance between neighbours in memory, so one kernel serves all.

const TILE = 32u;              // rows and columns of the result that a workgroup computes at once
const DEPTH = 16u;             // terms of each sum per pass
const SPAN = 16u;              // a lane computes the elements at its position and 16 further down and across

var<workgroup> left_tile: array<f32, 512>;   // (DEPTH, TILE)
var<workgroup> right_tile: array<f32, 512>;  // (DEPTH, TILE)

fn n_tiles(length: u32) -> u32 {
  return (length + TILE - 1u) / TILE;
}

fn left_at(operation: Operation, row: u32, inner: u32) -> f32 {
  if row >= operation.rows || inner >= operation.inner {
    return 0.0;
  }
  if row == operation.row_of_ones {
    return 1.0;
  }
  return memory[operation.left + row * operation.left_by_row + inner * operation.left_by_column];
}

fn right_at(operation: Operation, inner: u32, column: u32) -> f32 {
  if inner >= operation.inner || column >= operation.columns {
    return 0.0;
  }
  return memory[operation.right + inner * operation.right_by_row + column * operation.right_by_column];
}

// The element of a tile that a lane fetches: its positions along the tile's side and in depth. Adjacent lanes fetch
// elements that are adjacent in memory.
fn fetched(part: u32, side_by_side_in_depth: bool) -> vec2u {
  if side_by_side_in_depth {
    return vec2u(part / DEPTH, part % DEPTH);
  }
  return vec2u(part % TILE, part / TILE);
}

fn multiply_tile(operation: Operation, first_row: u32, first_column: u32, lane: u32) {
  let down = lane / SPAN;
  let across = lane % SPAN;
  var upper = vec2f(bias(operation, first_column + across), bias(operation, first_column + across + SPAN));
  var lower = upper;
  for (var first = 0u; first < operation.inner; first += DEPTH) {
    for (var part = lane; part < TILE * DEPTH; part += LANES) {
      let of_left = fetched(part, operation.left_by_column == 1u);
      left_tile[of_left.y * TILE + of_left.x] = left_at(operation, first_row + of_left.x, first + of_left.y);
      let of_right = fetched(part, operation.right_by_column != 1u);
      right_tile[of_right.y * TILE + of_right.x] = right_at(operation, first + of_right.y, first_column + of_right.x);
    }
    workgroupBarrier();
    for (var depth = 0u; depth < DEPTH; depth++) {
      let right = vec2f(right_tile[depth * TILE + across], right_tile[depth * TILE + across + SPAN]);
      upper += left_tile[depth * TILE + down] * right;
      lower += left_tile[depth * TILE + down + SPAN] * right;
    }
    workgroupBarrier();
  }
  end_pair(operation, first_row + down, first_column + across, upper);
  end_pair(operation, first_row + down + SPAN, first_column + across, lower);
}

fn end_pair(operation: Operation, row: u32, column: u32, values: vec2f) {
  if row < operation.rows && column < operation.columns {
    end_element(operation, row, column, values.x);
  }
  if row < operation.rows && column + SPAN < operation.columns {
    end_element(operation, row, column + SPAN, values.y);
  }
}

fn multiply(operation: Operation, group: u32, groups: u32, lane: u32) {
  let across = n_tiles(operation.columns);
  for (var tile = group; tile < across * n_tiles(operation.rows); tile += groups) {
    multiply_tile(operation, tile / across * TILE, tile % across * TILE, lane);
  }
}
