// Executes a program of lib/backends/webgpu/description.py in a browser: some steps, launched one operation after
// another and in one kernel. Gives the mean loss of each step in both ways, and what went wrong.
async ({ program, layers, rate, x, y, starts }) => {
  const { buffers, memory_bytes, operations, regions, sources } = JSON.parse(program);
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) return null;
  const device = await adapter.requestDevice(), said = [], usage = GPUBufferUsage;
  device.onuncapturederror = (event) => said.push(event.error.message);
  const storage = usage.STORAGE | usage.COPY_DST | usage.COPY_SRC, uniform = usage.UNIFORM | usage.COPY_DST;

  const filled = (array, kinds = storage) => {
    const made = device.createBuffer({ size: array.byteLength, usage: kinds });
    device.queue.writeBuffer(made, 0, array);
    return made;
  };
  const layoutOf = (kinds) => device.createBindGroupLayout({
    entries: kinds.map((buffer, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer })),
  });
  const groupOf = (layout, resources) => device.createBindGroup({
    layout, entries: resources.map((resource, binding) => ({ binding, resource })),
  });
  const shared = layoutOf(Object.values(buffers).map((type) => ({ type })));
  const one = layoutOf([{ type: "uniform", hasDynamicOffset: true }]);
  const all = layoutOf([{ type: "read-only-storage" }, { type: "uniform" }]);
  const pipelineOf = (name, entryPoint, own) => device.createComputePipelineAsync({
    layout: device.createPipelineLayout({ bindGroupLayouts: [shared, own] }),
    compute: { module: device.createShaderModule({ code: sources[name] }), entryPoint },
  });
  const kernels = {};
  for (const { kernel } of operations) kernels[kernel] ??= await pipelineOf("dispatched", kernel, one);
  const steps = await pipelineOf("whole_steps", "steps", all);

  const words = new Uint32Array(64 * operations.length);
  operations.forEach((operation, index) => words.set(operation.words, 64 * index));
  const table = filled(words, storage | uniform), half = 784 * Math.ceil(y.length / 2);
  const low = filled(Float32Array.from(x.slice(0, half))), high = filled(Float32Array.from(x.slice(half)));
  const labels = filled(Uint32Array.from(y));

  const losses = async (launchAll) => {
    const memory = device.createBuffer({ size: memory_bytes, usage: storage });
    device.queue.writeBuffer(memory, 4 * regions.rate.first, Float32Array.of(rate));
    layers.forEach((layer, index) =>
      device.queue.writeBuffer(memory, 4 * regions[`layer ${index + 1}`].first, Float32Array.from(layer)));
    const schedule = filled(Uint32Array.of(0, ...starts)), results = filled(new Float32Array(2 * starts.length));
    const bound = [memory, low, high, labels, schedule, results].map((buffer) => ({ buffer }));
    const encoder = device.createCommandEncoder(), pass = encoder.beginComputePass();
    pass.setBindGroup(0, groupOf(shared, bound));
    launchAll(pass);
    pass.end();
    const read = device.createBuffer({ size: results.size, usage: usage.MAP_READ | usage.COPY_DST });
    encoder.copyBufferToBuffer(results, 0, read, 0, results.size);
    device.queue.submit([encoder.finish()]);
    await read.mapAsync(GPUMapMode.READ);
    return [...new Float32Array(read.getMappedRange())].filter((_, index) => index % 2 === 0);
  };
  const own = groupOf(one, [{ buffer: table, size: 256 }]);
  const launched = await losses((pass) => starts.forEach(() => operations.forEach(({ kernel, groups }, index) => {
    pass.setPipeline(kernels[kernel]);
    pass.setBindGroup(1, own, [256 * index]);
    pass.dispatchWorkgroups(groups);
  })));
  const whole = await losses((pass) => {
    pass.setPipeline(steps);
    pass.setBindGroup(1, groupOf(all, [{ buffer: table }, { buffer: filled(Uint32Array.of(starts.length), uniform) }]));
    pass.dispatchWorkgroups(1);
  });
  return { launched, whole, said };
}
