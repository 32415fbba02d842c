// Layer normalization over rows, and embedding tables. All tensors are contiguous.

struct LayerNormArguments {
    Array x;
    // The result, or the gradient of the operand.
    Array y;
    Array grad;
    Array weight;
    Array bias;
    Array mean;
    Array inverse_std;
    Array grad_weight;
    Array grad_bias;
    // float[splits][2][width].
    u64 partial;
    i64 rows;
    i64 width;
    i64 splits;
    float eps;
    int unused;
};

// One block a row.
extern "C" __global__ void layer_norm(const __grid_constant__ LayerNormArguments p)
{
    __shared__ float shared[2];
    for (i64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        i64 base = row * p.width;
        float total = 0.0f;
        for (i64 i = threadIdx.x; i < p.width; i += blockDim.x) total += load(p.x, base + i);
        total = block_sum(total);
        if (threadIdx.x == 0) shared[0] = total / (float)p.width;
        __syncthreads();
        float mean = shared[0];
        float squares = 0.0f;
        for (i64 i = threadIdx.x; i < p.width; i += blockDim.x) {
            float d = load(p.x, base + i) - mean;
            squares += d * d;
        }
        squares = block_sum(squares);
        if (threadIdx.x == 0) {
            shared[1] = rsqrtf(squares / (float)p.width + p.eps);
            store(p.mean, row, mean);
            store(p.inverse_std, row, shared[1]);
        }
        __syncthreads();
        float inverse = shared[1];
        for (i64 i = threadIdx.x; i < p.width; i += blockDim.x) {
            float value = (load(p.x, base + i) - mean) * inverse;
            if (p.weight.address) value *= load(p.weight, i);
            if (p.bias.address) value += load(p.bias, i);
            store(p.y, base + i, value);
        }
    }
}

extern "C" __global__ void layer_norm_grad_input(const __grid_constant__ LayerNormArguments p)
{
    __shared__ float shared[2];
    for (i64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        i64 base = row * p.width;
        float mean = load(p.mean, row), inverse = load(p.inverse_std, row);
        float first = 0.0f, second = 0.0f;
        for (i64 i = threadIdx.x; i < p.width; i += blockDim.x) {
            float grad = load(p.grad, base + i) * (p.weight.address ? load(p.weight, i) : 1.0f);
            first += grad;
            second += grad * (load(p.x, base + i) - mean) * inverse;
        }
        first = block_sum(first);
        second = block_sum(second);
        if (threadIdx.x == 0) {
            shared[0] = first / (float)p.width;
            shared[1] = second / (float)p.width;
        }
        __syncthreads();
        float of_grad = shared[0], of_product = shared[1];
        for (i64 i = threadIdx.x; i < p.width; i += blockDim.x) {
            float grad = load(p.grad, base + i) * (p.weight.address ? load(p.weight, i) : 1.0f);
            float normal = (load(p.x, base + i) - mean) * inverse;
            store(p.y, base + i, (grad - of_grad - normal * of_product) * inverse);
        }
        __syncthreads();
    }
}

// Blocks of 32 x 8: a column a thread, rows shared among `splits` blocks.
extern "C" __global__ void layer_norm_grad_sums(const __grid_constant__ LayerNormArguments p)
{
    __shared__ float of_row[2][8][33];
    i64 column = (i64)blockIdx.x * 32 + threadIdx.x;
    float first = 0.0f, second = 0.0f;
    if (column < p.width) {
        for (i64 row = (i64)blockIdx.y * 8 + threadIdx.y; row < p.rows; row += p.splits * 8) {
            float grad = load(p.grad, row * p.width + column);
            first += grad;
            second += grad * (load(p.x, row * p.width + column) - load(p.mean, row)) * load(p.inverse_std, row);
        }
    }
    of_row[0][threadIdx.y][threadIdx.x] = first;
    of_row[1][threadIdx.y][threadIdx.x] = second;
    __syncthreads();
    if (threadIdx.y == 0 && column < p.width) {
        for (int row = 1; row < 8; ++row) {
            first += of_row[0][row][threadIdx.x];
            second += of_row[1][row][threadIdx.x];
        }
        float* partial = (float*)p.partial + (i64)blockIdx.y * 2 * p.width;
        partial[column] = first;
        partial[p.width + column] = second;
    }
}

extern "C" __global__ void layer_norm_grad_finish(const __grid_constant__ LayerNormArguments p)
{
    const float* partial = (const float*)p.partial;
    for (i64 column = thread_index(); column < p.width; column += thread_count()) {
        float first = 0.0f, second = 0.0f;
        for (i64 split = 0; split < p.splits; ++split) {
            first += partial[split * 2 * p.width + column];
            second += partial[split * 2 * p.width + p.width + column];
        }
        if (p.grad_bias.address) store(p.grad_bias, column, first);
        if (p.grad_weight.address) store(p.grad_weight, column, second);
    }
}

struct EmbeddingArguments {
    // The table, or its gradient.
    Array weight;
    Array indices;
    // The rows, or their gradient.
    Array rows;
    i64 count;
    i64 width;
    i64 entries;
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

// Adds to an element that other threads add to as well. Half types are added by exchanging the word that holds
// the element.
__device__ __forceinline__ void add_to(const Array& array, i64 at, float summand)
{
    if (array.type == F32) {
        atomicAdd((float*)array.address + at, summand);
        return;
    }
    u32* word = (u32*)array.address + (at >> 1);
    int shift = (int)(at & 1) * 16;
    u32 old = *word, expected;
    do {
        expected = old;
        u16 bits = (u16)(expected >> shift);
        float sum = (array.type == F16 ? half_to_float(bits) : brain_to_float(bits)) + summand;
        u16 next = array.type == F16 ? float_to_half(sum) : float_to_brain(sum);
        old = atomicCAS(word, expected, (expected & ~(0xffffu << shift)) | ((u32)next << shift));
    } while (old != expected);
}

// The gradient must have been cleared. The order of additions may differ between runs, as it may in PyTorch.
extern "C" __global__ void embedding_grad(const __grid_constant__ EmbeddingArguments p)
{
    for (i64 i = thread_index(); i < p.count * p.width; i += thread_count()) {
        i64 column;
        i64 row = divide(i, p.width, column);
        i64 entry = load_integer(p.indices, row);
        if (entry < 0 || entry >= p.entries) continue;
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
