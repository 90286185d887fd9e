// What all kernels share: the buffers, and the description of an operation.
//
// All numbers of a step are in one float32 buffer, `memory`; an operation gives the positions in it at which its
// matrices begin, counted in numbers. Matrices are stored row by row. A layer's biases are the row after its weights.

const LANES = 256u;            // threads per workgroup
const NOTHING = 0xffffffffu;   // instead of a position: no such matrix, or no such row

struct Operation {
  kernel: u32,                 // its number in whole_steps.wgsl
  rows: u32,                   // of the result
  columns: u32,
  inner: u32,                  // terms in each sum of a product
  left: u32,                   // first factor, and the distances between neighbouring rows and columns
  left_by_row: u32,
  left_by_column: u32,
  right: u32,                  // second factor
  right_by_row: u32,
  right_by_column: u32,
  row_of_ones: u32,            // in the first factor, for the gradients of the biases
  biases: u32,                 // added to each row of the result
  result: u32,
  ending: u32,                 // what happens to a number before it is stored: see endings.wgsl
  mask: u32,                   // activations at which ReLU's gradient is taken
  rate: u32,                   // the learning rate
  gradient: u32,               // of the loss with respect to the logits
  @size(188) losses: u32,      // per image, then whether each was classified correctly; padded to 256 bytes
}

@group(0) @binding(0) var<storage, read_write> memory: array<f32>;
// Pixels, (images, inputs), in two halves: a single buffer would be larger than many adapters allow.
@group(0) @binding(1) var<storage, read> images_low: array<f32>;
@group(0) @binding(2) var<storage, read> images_high: array<f32>;
@group(0) @binding(3) var<storage, read> labels: array<u32>;
// The number of completed steps, then the first image of each batch.
@group(0) @binding(4) var<storage, read_write> schedule: array<u32>;
// For each step, the mean loss and the number of correctly classified images.
@group(0) @binding(5) var<storage, read_write> results: array<f32>;

fn first_image() -> u32 {
  return schedule[1u + schedule[0]];
}
