// Softmax, its logarithm, and the losses behind that, over the middle of contiguous [outer, classes, inner] tensors.

struct LossArguments {
    // The operand, or the gradient of the result.
    Array input;
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
    // Whether the logarithm is taken.
    i64 is_log;
};

// Targets that count for nothing: PyTorch's default `ignore_index`.
#define IGNORED (-100)

// A result from its logarithm.
__device__ __forceinline__ float softmax_of(const LossArguments& p, float logarithm)
{
    return p.is_log ? logarithm : expf(logarithm);
}

// What a gradient adds to the number that all of a distribution's gradients need.
__device__ __forceinline__ float softmax_summand(const LossArguments& p, float grad, i64 at)
{
    return p.is_log ? grad : grad * load(p.saved, at);
}

__device__ __forceinline__ float softmax_grad_of(const LossArguments& p, float grad, float saved, float total)
{
    return p.is_log ? grad - expf(saved) * total : saved * (grad - total);
}

// One warp for each distribution when `inner` is one; blocks of 32 x 8.
extern "C" __global__ void softmax_rows(const __grid_constant__ LossArguments p)
{
    for (i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y; row < p.outer; row += (i64)gridDim.x * blockDim.y) {
        i64 base = row * p.classes;
        float largest = -__int_as_float(0x7f800000);
        for (i64 c = threadIdx.x; c < p.classes; c += 32) largest = fmaxf(largest, load(p.input, base + c));
        largest = warp_max(largest);
        float total = 0.0f;
        for (i64 c = threadIdx.x; c < p.classes; c += 32) total += expf(load(p.input, base + c) - largest);
        total = logf(warp_sum(total));
        for (i64 c = threadIdx.x; c < p.classes; c += 32)
            store(p.out, base + c, softmax_of(p, load(p.input, base + c) - largest - total));
    }
}

extern "C" __global__ void softmax_rows_grad(const __grid_constant__ LossArguments p)
{
    for (i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y; row < p.outer; row += (i64)gridDim.x * blockDim.y) {
        i64 base = row * p.classes;
        float total = 0.0f;
        for (i64 c = threadIdx.x; c < p.classes; c += 32)
            total += softmax_summand(p, load(p.input, base + c), base + c);
        total = warp_sum(total);
        for (i64 c = threadIdx.x; c < p.classes; c += 32)
            store(p.out, base + c, softmax_grad_of(p, load(p.input, base + c), load(p.saved, base + c), total));
    }
}

// Elements in front of the first group of four whose start is aligned, in a row that starts at `base`.
__device__ __forceinline__ i64 before_groups(i64 base, i64 length)
{
    i64 ahead = (4 - (base & 3)) & 3;
    return ahead < length ? ahead : length;
}

// Calls `each.four(at)` and `each.one(at)` so that all of a row's elements are met once, by the threads of a block.
template <typename Each>
__device__ __forceinline__ void over_row(i64 base, i64 length, Each each)
{
    i64 ahead = before_groups(base, length);
    i64 groups = (length - ahead) >> 2;
    for (i64 g = threadIdx.x; g < groups; g += blockDim.x) each.four(base + ahead + 4 * g);
    if ((i64)threadIdx.x < ahead) each.one(base + threadIdx.x);
    for (i64 i = ahead + 4 * groups + threadIdx.x; i < length; i += blockDim.x) each.one(base + i);
}

// The largest value so far, and the sum of exponentials of differences to it.
struct Exponentials {
    const Array& in;
    float largest;
    float total;

    __device__ __forceinline__ void add(float most, float sum)
    {
        float next = fmaxf(largest, most);
        if (next == -__int_as_float(0x7f800000)) return;
        total = total * expf(largest - next) + sum * expf(most - next);
        largest = next;
    }
    __device__ __forceinline__ void four(i64 at)
    {
        float v[4];
        load_group<4>(in, at, 1, v);
        float most = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
        float next = fmaxf(largest, most);
        if (next == -__int_as_float(0x7f800000)) return;
        total = total * expf(largest - next)
            + ((expf(v[0] - next) + expf(v[1] - next)) + (expf(v[2] - next) + expf(v[3] - next)));
        largest = next;
    }
    __device__ __forceinline__ void one(i64 at) { add(load(in, at), 1.0f); }
};

struct LessNumber {
    const LossArguments& p;
    float number;

    __device__ __forceinline__ void four(i64 at)
    {
        float v[4];
        load_group<4>(p.input, at, 1, v);
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = softmax_of(p, v[k] - number);
        store_group<4>(p.out, at, 1, v);
    }
    __device__ __forceinline__ void one(i64 at) { store(p.out, at, softmax_of(p, load(p.input, at) - number)); }
};

// One block for each long distribution when `inner` is one. A second look at a row finds it in the cache.
extern "C" __global__ void __launch_bounds__(1024) softmax_wide(const __grid_constant__ LossArguments p)
{
    __shared__ float largest_of[32], total_of[32], number;
    for (i64 row = blockIdx.x; row < p.outer; row += gridDim.x) {
        i64 base = row * p.classes;
        Exponentials sums = { p.input, -__int_as_float(0x7f800000), 0.0f };
        over_row<Exponentials&>(base, p.classes, sums);
        for (int other = 16; other > 0; other >>= 1) {
            float most = __shfl_xor_sync(0xffffffffu, sums.largest, other);
            float total = __shfl_xor_sync(0xffffffffu, sums.total, other);
            sums.add(most, total);
        }
        if ((threadIdx.x & 31) == 0) {
            largest_of[threadIdx.x >> 5] = sums.largest;
            total_of[threadIdx.x >> 5] = sums.total;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int warp = 1; warp < (int)blockDim.x / 32; ++warp) sums.add(largest_of[warp], total_of[warp]);
            number = sums.largest + logf(sums.total);
        }
        __syncthreads();
        LessNumber less = { p, number };
        over_row<LessNumber&>(base, p.classes, less);
        __syncthreads();
    }
}

struct Total {
    const LossArguments& p;
    float total;

    __device__ __forceinline__ void four(i64 at)
    {
        float v[4];
        load_group<4>(p.input, at, 1, v);
        if (!p.is_log) {
            float saved[4];
            load_group<4>(p.saved, at, 1, saved);
#pragma unroll
            for (int k = 0; k < 4; ++k) v[k] *= saved[k];
        }
        total += (v[0] + v[1]) + (v[2] + v[3]);
    }
    __device__ __forceinline__ void one(i64 at) { total += softmax_summand(p, load(p.input, at), at); }
};

struct LessShare {
    const LossArguments& p;
    float total;

    __device__ __forceinline__ void four(i64 at)
    {
        float v[4], saved[4];
        load_group<4>(p.input, at, 1, v);
        load_group<4>(p.saved, at, 1, saved);
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = softmax_grad_of(p, v[k], saved[k], total);
        store_group<4>(p.out, at, 1, v);
    }
    __device__ __forceinline__ void one(i64 at)
    {
        store(p.out, at, softmax_grad_of(p, load(p.input, at), load(p.saved, at), total));
    }
};

extern "C" __global__ void __launch_bounds__(1024) softmax_wide_grad(const __grid_constant__ LossArguments p)
{
    __shared__ float whole;
    for (i64 row = blockIdx.x; row < p.outer; row += gridDim.x) {
        i64 base = row * p.classes;
        Total sum = { p, 0.0f };
        over_row<Total&>(base, p.classes, sum);
        float total = block_sum(sum.total);
        if (threadIdx.x == 0) whole = total;
        __syncthreads();
        LessShare share = { p, whole };
        over_row<LessShare&>(base, p.classes, share);
        __syncthreads();
    }
}

// One thread for each distribution otherwise: neighbouring threads read neighbouring positions.
extern "C" __global__ void softmax_columns(const __grid_constant__ LossArguments p)
{
    for (i64 i = thread_index(); i < p.outer * p.inner; i += thread_count()) {
        i64 position;
        i64 sample = divide(i, p.inner, position);
        i64 base = sample * p.classes * p.inner + position;
        float largest = -__int_as_float(0x7f800000);
        for (i64 c = 0; c < p.classes; ++c) largest = fmaxf(largest, load(p.input, base + c * p.inner));
        float total = 0.0f;
        for (i64 c = 0; c < p.classes; ++c) total += expf(load(p.input, base + c * p.inner) - largest);
        total = logf(total);
        for (i64 c = 0; c < p.classes; ++c)
            store(p.out, base + c * p.inner, softmax_of(p, load(p.input, base + c * p.inner) - largest - total));
    }
}

extern "C" __global__ void softmax_columns_grad(const __grid_constant__ LossArguments p)
{
    for (i64 i = thread_index(); i < p.outer * p.inner; i += thread_count()) {
        i64 position;
        i64 sample = divide(i, p.inner, position);
        i64 base = sample * p.classes * p.inner + position;
        float total = 0.0f;
        for (i64 c = 0; c < p.classes; ++c) {
            i64 at = base + c * p.inner;
            total += softmax_summand(p, load(p.input, at), at);
        }
        for (i64 c = 0; c < p.classes; ++c) {
            i64 at = base + c * p.inner;
            store(p.out, at, softmax_grad_of(p, load(p.input, at), load(p.saved, at), total));
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
        total -= load(p.input, at);
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
    float grad = -load(p.input, 0) / load(p.total_weight, 0);
    i64 count = p.outer * p.classes * p.inner;
    for (i64 index = thread_index(); index < count; index += thread_count()) {
        i64 position, c;
        i64 sample = divide(divide(index, p.inner, position), p.classes, c);
        store(p.out, index, targets[sample * p.inner + position] == c ? grad : 0.0f);
    }
}

struct AtTarget {
    const Array& out;
    i64 target;
    float grad;

    __device__ __forceinline__ void four(i64 at)
    {
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = at + k == target ? grad : 0.0f;
        store_group<4>(out, at, 1, v);
    }
    __device__ __forceinline__ void one(i64 at) { store(out, at, at == target ? grad : 0.0f); }
};

// The same for long distributions when `inner` is one, a block each.
extern "C" __global__ void nll_loss_grad_wide(const __grid_constant__ LossArguments p)
{
    const i64* targets = (const i64*)p.target;
    float grad = -load(p.input, 0) / load(p.total_weight, 0);
    for (i64 row = blockIdx.x; row < p.outer; row += gridDim.x) {
        i64 target = targets[row], base = row * p.classes;
        bool counts = target >= 0 && target < p.classes;
        AtTarget place = { p.out, counts ? base + target : -1, grad };
        over_row<AtTarget&>(base, p.classes, place);
    }
}
