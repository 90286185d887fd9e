// What happens to a number before it is stored in the result: at the end of a product, or as a separate operation.

const STORE = 0u;
const RELU = 1u;
const RELU_GRADIENT = 2u;
const DESCEND = 3u;

fn bias(operation: Operation, column: u32) -> f32 {
  if operation.biases == NOTHING {
    return 0.0;
  }
  return memory[operation.biases + column];
}

fn end_element(operation: Operation, row: u32, column: u32, value: f32) {
  let place = row * operation.columns + column;
  switch operation.ending {
    case RELU: {
      // Not max(), which may drop a NaN.
      memory[operation.result + place] = select(value, 0.0, value < 0.0);
    }
    case RELU_GRADIENT: {
      memory[operation.result + place] = select(0.0, value, memory[operation.mask + place] > 0.0);
    }
    case DESCEND: {
      memory[operation.result + place] -= memory[operation.rate] * value;
    }
    default: {
      memory[operation.result + place] = value;
    }
  }
}

// The ending as a separate operation, applied to each element of `left`.
fn end_elements(operation: Operation, group: u32, groups: u32, lane: u32) {
  for (var place = group * LANES + lane; place < operation.rows * operation.columns; place += groups * LANES) {
    let row = place / operation.columns;
    let column = place % operation.columns;
    end_element(operation, row, column, memory[operation.left + place] + bias(operation, column));
  }
}
