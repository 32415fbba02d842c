// out[k] = scale * sum over r of in[k, r], in two passes: partial sums in scratch memory, then their sum.
// The order of additions is fixed by the shape alone, so results repeat.

struct Axes {
    i64 shape[MAX_RANK];
    i64 strides[MAX_RANK];
    // Where a kept element goes in the result.
    i64 out_strides[MAX_RANK];
    int rank;
    int unused;
};

struct SumArguments {
    Array input;
    Array out;
    // float[splits][kept_count].
    u64 partial;
    Axes kept;
    Axes reduced;
    i64 kept_count;
    i64 reduced_count;
    i64 splits;
    float scale;
    int unused;
};

__device__ __forceinline__ i64 offset_of(const Axes& axes, i64 index)
{
    i64 rest = index, at = 0;
    for (int d = axes.rank - 1; d > 0; --d) {
        i64 i;
        rest = divide(rest, axes.shape[d], i);
        at += i * axes.strides[d];
    }
    return at + rest * axes.strides[0];
}

__device__ __forceinline__ i64 out_offset_of(const Axes& axes, i64 index)
{
    i64 rest = index, at = 0;
    for (int d = axes.rank - 1; d > 0; --d) {
        i64 i;
        rest = divide(rest, axes.shape[d], i);
        at += i * axes.out_strides[d];
    }
    return at + rest * axes.out_strides[0];
}

// The share of the reduced elements that belongs to one split.
__device__ __forceinline__ void share_of(const SumArguments& p, i64 split, i64& from, i64& to)
{
    // In groups of eight, so that every share starts where a wide load may.
    i64 each = ((p.reduced_count + p.splits - 1) / p.splits + 7) / 8 * 8;
    from = split * each;
    to = from + each < p.reduced_count ? from + each : p.reduced_count;
}

// One block for each kept element and split; neighbouring threads read neighbouring reduced elements.
template <int V>
__device__ __forceinline__ void sum_along(const SumArguments& p)
{
    i64 kept = (i64)blockIdx.x;
    i64 base = offset_of(p.kept, kept);
    i64 step = p.reduced.strides[p.reduced.rank - 1];
    i64 from, to;
    share_of(p, (i64)blockIdx.y, from, to);
    float total = 0.0f;
    for (i64 r = from + (i64)threadIdx.x * V; r < to; r += (i64)blockDim.x * V) {
        float values[V];
        load_group<V>(p.input, base + offset_of(p.reduced, r), step, values);
#pragma unroll
        for (int k = 0; k < V; ++k) total += values[k];
    }
    total = block_sum(total);
    if (threadIdx.x == 0) ((float*)p.partial)[(i64)blockIdx.y * p.kept_count + kept] = total;
}

// The last reduced dimension is a multiple of the group.
extern "C" __global__ void sum_along8(const __grid_constant__ SumArguments p) { sum_along<8>(p); }

extern "C" __global__ void sum_along4(const __grid_constant__ SumArguments p) { sum_along<4>(p); }

extern "C" __global__ void sum_along1(const __grid_constant__ SumArguments p) { sum_along<1>(p); }

// Blocks of 32 x 8: neighbouring threads read neighbouring groups of kept elements.
template <int V>
__device__ __forceinline__ void sum_across(const SumArguments& p)
{
    __shared__ float of_row[8][32 * V + 1];
    i64 kept = ((i64)blockIdx.x * 32 + threadIdx.x) * V;
    i64 from, to;
    share_of(p, (i64)blockIdx.y, from, to);
    float total[V];
#pragma unroll
    for (int k = 0; k < V; ++k) total[k] = 0.0f;
    if (kept < p.kept_count) {
        i64 base = offset_of(p.kept, kept);
        i64 step = p.kept.strides[p.kept.rank - 1];
        for (i64 r = from + threadIdx.y; r < to; r += 8) {
            float values[V];
            load_group<V>(p.input, base + offset_of(p.reduced, r), step, values);
#pragma unroll
            for (int k = 0; k < V; ++k) total[k] += values[k];
        }
    }
#pragma unroll
    for (int k = 0; k < V; ++k) of_row[threadIdx.y][k * 32 + threadIdx.x] = total[k];
    __syncthreads();
    if (threadIdx.y == 0 && kept < p.kept_count) {
#pragma unroll
        for (int k = 0; k < V; ++k) {
            float sum = total[k];
#pragma unroll
            for (int row = 1; row < 8; ++row) sum += of_row[row][k * 32 + threadIdx.x];
            ((float*)p.partial)[(i64)blockIdx.y * p.kept_count + kept + k] = sum;
        }
    }
}

// The last kept dimension is a multiple of the group.
extern "C" __global__ void sum_across4(const __grid_constant__ SumArguments p) { sum_across<4>(p); }

extern "C" __global__ void sum_across1(const __grid_constant__ SumArguments p) { sum_across<1>(p); }

// One thread for each kept element, for more of them than the scratch memory holds.
extern "C" __global__ void sum_direct(const __grid_constant__ SumArguments p)
{
    for (i64 kept = thread_index(); kept < p.kept_count; kept += thread_count()) {
        i64 base = offset_of(p.kept, kept);
        float total = 0.0f;
        for (i64 r = 0; r < p.reduced_count; ++r) total += load(p.input, base + offset_of(p.reduced, r));
        store(p.out, out_offset_of(p.kept, kept), total * p.scale);
    }
}

extern "C" __global__ void sum_finish(const __grid_constant__ SumArguments p)
{
    const float* partial = (const float*)p.partial;
    for (i64 kept = thread_index(); kept < p.kept_count; kept += thread_count()) {
        float total = 0.0f;
        for (i64 split = 0; split < p.splits; ++split) total += partial[split * p.kept_count + kept];
        store(p.out, out_offset_of(p.kept, kept), total * p.scale);
    }
}
