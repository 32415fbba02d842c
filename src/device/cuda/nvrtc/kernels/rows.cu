// Tables of rows: embeddings, and choosing among places.

struct EmbeddingArguments {
    // The table, or its gradient.
    Array weight;
    Array indices;
    // The rows, or their gradient.
    Array rows;
    i64 count;
    i64 width;
    i64 entries;
    // An entry without a gradient, or -1.
    i64 padding;
};

extern "C" __global__ void embedding(const __grid_constant__ EmbeddingArguments p)
{
    for (i64 i = thread_index(); i < p.count * p.width; i += thread_count()) {
        i64 column;
        i64 row = divide(i, p.width, column);
        i64 entry = load_integer(p.indices, row);
        bool is_valid = entry >= 0 && entry < p.entries;
        store(p.rows, i, is_valid ? load(p.weight, entry * p.width + column) : 0.0f);
    }
}

// Adds to an element that other threads add to as well: float32 or a half.
__device__ __forceinline__ void add_to(const Array& array, i64 at, float summand)
{
    if (array.type == F32) {
        atomicAdd((float*)array.address + at, summand);
        return;
    }
    u16* half = (u16*)array.address + at;
    u16 old = *half, expected;
    do {
        expected = old;
        float sum = (array.type == F16 ? half_to_float(expected) : brain_to_float(expected)) + summand;
        old = atomicCAS(half, expected, array.type == F16 ? float_to_half(sum) : float_to_brain(sum));
    } while (old != expected);
}

// The gradient must have been cleared. The order of additions may differ between runs, as it may in PyTorch.
extern "C" __global__ void embedding_grad(const __grid_constant__ EmbeddingArguments p)
{
    for (i64 i = thread_index(); i < p.count * p.width; i += thread_count()) {
        i64 column;
        i64 row = divide(i, p.width, column);
        i64 entry = load_integer(p.indices, row);
        if (entry < 0 || entry >= p.entries || entry == p.padding) continue;
        float grad = load(p.rows, i);
        i64 at = entry * p.width + column;
        add_to(p.weight, at, grad);
    }
}

// Indices choose one of the places along a dimension, for each index of the others.
struct GatherArguments {
    // What is read from, or what is added to.
    Array source;
    Array indices;
    // The chosen elements, or their gradient.
    Array chosen;
    // Lengths of the indices' dimensions, and the strides of the three arrays; the dimension itself is left out
    // of the source's.
    i64 shape[MAX_RANK];
    i64 source_strides[MAX_RANK];
    i64 index_strides[MAX_RANK];
    i64 chosen_strides[MAX_RANK];
    i64 step;
    i64 length;
    i64 count;
    int rank;
};

struct Places {
    i64 source;
    i64 chosen;
    bool is_valid;
};

__device__ __forceinline__ Places places(const GatherArguments& p, i64 i)
{
    i64 source = 0, index = 0, chosen = 0;
    for (int d = p.rank - 1; d >= 0; --d) {
        i64 at;
        i = divide(i, p.shape[d], at);
        source += at * p.source_strides[d];
        index += at * p.index_strides[d];
        chosen += at * p.chosen_strides[d];
    }
    i64 place = load_integer(p.indices, index);
    return { source + place * p.step, chosen, place >= 0 && place < p.length };
}

extern "C" __global__ void gather(const __grid_constant__ GatherArguments p)
{
    for (i64 i = thread_index(); i < p.count; i += thread_count()) {
        Places at = places(p, i);
        if (p.source.type == I64)
            store_integer(p.chosen, at.chosen, at.is_valid ? load_integer(p.source, at.source) : 0);
        else
            store(p.chosen, at.chosen, at.is_valid ? load(p.source, at.source) : 0.0f);
    }
}

// The gradient must have been cleared; the order of additions may differ between runs.
extern "C" __global__ void gather_grad(const __grid_constant__ GatherArguments p)
{
    for (i64 i = thread_index(); i < p.count; i += thread_count()) {
        Places at = places(p, i);
        if (at.is_valid) add_to(p.source, at.source, load(p.chosen, at.chosen));
    }
}

struct MaskArguments {
    Array x;
    // u8, each.
    u64 hidden;
    u64 rows;
    Array y;
    i64 count;
    i64 height;
    i64 width;
};

// Keeps what is on or below the diagonal of each matrix.
extern "C" __global__ void tril(const __grid_constant__ MaskArguments p)
{
    for (i64 i = thread_index(); i < p.count; i += thread_count()) {
        i64 column, row;
        divide(divide(i, p.width, column), p.height, row);
        store(p.y, i, column <= row ? load(p.x, i) : 0.0f);
    }
}

// A warp a row; blocks of 32 x 8.
extern "C" __global__ void hidden_rows(const __grid_constant__ MaskArguments p)
{
    for (i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y; row < p.count; row += (i64)gridDim.x * blockDim.y) {
        bool all = true;
        for (i64 i = threadIdx.x; i < p.width; i += 32) {
            bool hidden = load(p.x, row * p.width + i) == -__int_as_float(0x7f800000);
            ((u8*)p.hidden)[row * p.width + i] = hidden;
            all = all && hidden;
        }
        all = __all_sync(0xffffffffu, all);
        if (threadIdx.x == 0) ((u8*)p.rows)[row] = all;
        if (all)
            for (i64 i = threadIdx.x; i < p.width; i += 32) store(p.y, row * p.width + i, 0.0f);
    }
}
