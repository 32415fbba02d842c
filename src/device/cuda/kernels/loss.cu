// Softmax and the losses behind it, over dimension 1 of contiguous [outer, classes, inner] tensors.

struct LossArguments {
    // The operand, or the gradient of the result.
    Array in;
    // The log probabilities, where a gradient needs them.
    Array saved;
    Array out;
    // int64[outer][inner].
    u64 target;
    Array loss;
    Array total_weight;
    // float[2][blocks].
    u64 partial;
    i64 outer;
    i64 classes;
    i64 inner;
    i64 blocks;
};

// Targets that count for nothing: PyTorch's default `ignore_index`.
#define IGNORED (-100)

// One warp for each distribution when `inner` is one; blocks of 32 x 8.
extern "C" __global__ void log_softmax_rows(const __grid_constant__ LossArguments p)
{
    for (i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y; row < p.outer; row += (i64)gridDim.x * blockDim.y) {
        i64 base = row * p.classes;
        float largest = -__int_as_float(0x7f800000);
        for (i64 c = threadIdx.x; c < p.classes; c += 32) largest = fmaxf(largest, load(p.in, base + c));
        largest = warp_max(largest);
        float total = 0.0f;
        for (i64 c = threadIdx.x; c < p.classes; c += 32) total += expf(load(p.in, base + c) - largest);
        total = logf(warp_sum(total));
        for (i64 c = threadIdx.x; c < p.classes; c += 32)
            store(p.out, base + c, load(p.in, base + c) - largest - total);
    }
}

extern "C" __global__ void log_softmax_rows_grad(const __grid_constant__ LossArguments p)
{
    for (i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y; row < p.outer; row += (i64)gridDim.x * blockDim.y) {
        i64 base = row * p.classes;
        float total = 0.0f;
        for (i64 c = threadIdx.x; c < p.classes; c += 32) total += load(p.in, base + c);
        total = warp_sum(total);
        for (i64 c = threadIdx.x; c < p.classes; c += 32)
            store(p.out, base + c, load(p.in, base + c) - expf(load(p.saved, base + c)) * total);
    }
}

// One thread for each distribution otherwise: neighbouring threads read neighbouring positions.
extern "C" __global__ void log_softmax_columns(const __grid_constant__ LossArguments p)
{
    for (i64 i = thread_index(); i < p.outer * p.inner; i += thread_count()) {
        i64 position;
        i64 sample = divide(i, p.inner, position);
        i64 base = sample * p.classes * p.inner + position;
        float largest = -__int_as_float(0x7f800000);
        for (i64 c = 0; c < p.classes; ++c) largest = fmaxf(largest, load(p.in, base + c * p.inner));
        float total = 0.0f;
        for (i64 c = 0; c < p.classes; ++c) total += expf(load(p.in, base + c * p.inner) - largest);
        total = logf(total);
        for (i64 c = 0; c < p.classes; ++c)
            store(p.out, base + c * p.inner, load(p.in, base + c * p.inner) - largest - total);
    }
}

extern "C" __global__ void log_softmax_columns_grad(const __grid_constant__ LossArguments p)
{
    for (i64 i = thread_index(); i < p.outer * p.inner; i += thread_count()) {
        i64 position;
        i64 sample = divide(i, p.inner, position);
        i64 base = sample * p.classes * p.inner + position;
        float total = 0.0f;
        for (i64 c = 0; c < p.classes; ++c) total += load(p.in, base + c * p.inner);
        for (i64 c = 0; c < p.classes; ++c) {
            i64 at = base + c * p.inner;
            store(p.out, at, load(p.in, at) - expf(load(p.saved, at)) * total);
        }
    }
}

// Sums of the losses and of the targets that count, a block each.
extern "C" __global__ void nll_loss_partial(const __grid_constant__ LossArguments p)
{
    const i64* targets = (const i64*)p.target;
    float total = 0.0f, counted = 0.0f;
    for (i64 i = thread_index(); i < p.outer * p.inner; i += thread_count()) {
        i64 target = targets[i];
        if (target == IGNORED || target < 0 || target >= p.classes) continue;
        i64 position;
        i64 sample = divide(i, p.inner, position);
        i64 at = (sample * p.classes + target) * p.inner + position;
        total -= load(p.in, at);
        counted += 1.0f;
    }
    total = block_sum(total);
    counted = block_sum(counted);
    if (threadIdx.x == 0) {
        ((float*)p.partial)[blockIdx.x] = total;
        ((float*)p.partial)[p.blocks + blockIdx.x] = counted;
    }
}

// In one block.
extern "C" __global__ void nll_loss_finish(const __grid_constant__ LossArguments p)
{
    const float* partial = (const float*)p.partial;
    float total = 0.0f, counted = 0.0f;
    for (i64 i = threadIdx.x; i < p.blocks; i += blockDim.x) {
        total += partial[i];
        counted += partial[p.blocks + i];
    }
    total = block_sum(total);
    counted = block_sum(counted);
    if (threadIdx.x == 0) {
        store(p.loss, 0, total / counted);
        store(p.total_weight, 0, counted);
    }
}

// `in` is the gradient of the loss, a single number.
extern "C" __global__ void nll_loss_grad(const __grid_constant__ LossArguments p)
{
    const i64* targets = (const i64*)p.target;
    float grad = -load(p.in, 0) / load(p.total_weight, 0);
    i64 count = p.outer * p.classes * p.inner;
    for (i64 index = thread_index(); index < count; index += thread_count()) {
        i64 position, c;
        i64 sample = divide(divide(index, p.inner, position), p.classes, c);
        store(p.out, index, targets[sample * p.inner + position] == c ? grad : 0.0f);
    }
}
