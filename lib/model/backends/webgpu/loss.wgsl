// Softmax cross-entropy of each image's logits, and its gradient.

// Loss of one image, whose logits are a row of the operation's `result`.
fn loss_of_image(operation: Operation, image: u32) {
  let logits = operation.result + image * operation.columns;
  var largest = memory[logits];
  var chosen = 0u;
  for (var class_ = 1u; class_ < operation.columns; class_++) {
    if memory[logits + class_] > largest {
      largest = memory[logits + class_];
      chosen = class_;
    }
  }
  var total = 0.0;
  for (var class_ = 0u; class_ < operation.columns; class_++) {
    total += exp(memory[logits + class_] - largest);
  }
  // An image that only pads the last slice of an evaluation has a label outside the classes, and does not count.
  let label = labels[first_image() + image];
  var loss = 0.0;
  for (var class_ = 0u; class_ < operation.columns; class_++) {
    let shifted = memory[logits + class_] - largest;
    let expected = select(0.0, 1.0, class_ == label);
    if class_ == label {
      loss = log(total) - shifted;
    }
    // Gradient of the mean loss of the batch.
    memory[operation.gradient + image * operation.columns + class_] =
      (exp(shifted) / total - expected) / f32(operation.rows);
  }
  memory[operation.losses + image] = loss;
  memory[operation.losses + operation.rows + image] = select(0.0, 1.0, chosen == label);
}

fn find_losses(operation: Operation, group: u32, groups: u32, lane: u32) {
  for (var image = group * LANES + lane; image < operation.rows; image += groups * LANES) {
    loss_of_image(operation, image);
  }
}

// The last layer's product and the loss; all logits of an image are in one tile.
fn multiply_and_find_losses(operation: Operation, group: u32, groups: u32, lane: u32) {
  for (var tile = group; tile < n_tiles(operation.rows); tile += groups) {
    multiply_tile(operation, tile * TILE, 0u, lane);
    storageBarrier();
    let image = tile * TILE + lane;
    if lane < TILE && image < operation.rows {
      loss_of_image(operation, image);
    }
  }
}
