// What all kernels share: the buffers, and what an operation is told.
//
// Everything that a step computes with lies in one buffer of float32, `memory`; an operation is told where in it its
// matrices begin, counted in numbers. A matrix lies row by row. A layer's biases are the row after its weights.

const LANES = 256u;            // threads of a workgroup
const NOTHING = 0xffffffffu;   // in place of a position: there is no such matrix, or no such row

struct Operation {
  kernel: u32,                 // which of those in whole_steps.wgsl
  rows: u32,                   // of the result
  columns: u32,
  inner: u32,                  // length of the sums of a product
  left: u32,                   // first factor, and how far apart its neighbours by row and by column are
  left_by_row: u32,
  left_by_column: u32,
  right: u32,                  // second factor
  right_by_row: u32,
  right_by_column: u32,
  row_of_ones: u32,            // of the first factor: it multiplies the gradients of the biases
  biases: u32,                 // added to each row of the result
  result: u32,
  ending: u32,                 // what becomes of a number before it is stored: see endings.wgsl
  mask: u32,                   // activations at which ReLU's gradient is taken
  rate: u32,                   // the learning rate
  gradient: u32,               // of the loss by the logits
  @size(188) losses: u32,      // of each image, followed by whether it was classified correctly; padded to 256 bytes
}

@group(0) @binding(0) var<storage, read_write> memory: array<f32>;
// Pixels, (images, inputs), in two halves: one buffer would be larger than many adapters allow.
@group(0) @binding(1) var<storage, read> images_low: array<f32>;
@group(0) @binding(2) var<storage, read> images_high: array<f32>;
@group(0) @binding(3) var<storage, read> labels: array<u32>;
// How many steps are done, and then the first image of each batch.
@group(0) @binding(4) var<storage, read_write> schedule: array<u32>;
// Of each step the mean loss, and how many images were classified correctly.
@group(0) @binding(5) var<storage, read_write> results: array<f32>;

fn first_image() -> u32 {
  return schedule[1u + schedule[0]];
}
