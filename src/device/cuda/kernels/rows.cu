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

// Adds with atomics, so the order of additions may differ between runs, as it may in PyTorch. The
// gradient must have been cleared. Half types are added by exchanging the word that holds the element.
extern "C" __global__ void embedding_grad(const __grid_constant__ EmbeddingArguments p)
{
    for (i64 i = thread_index(); i < p.count * p.width; i += thread_count()) {
        i64 column;
        i64 row = divide(i, p.width, column);
        i64 entry = load_integer(p.indices, row);
        if (entry < 0 || entry >= p.entries) continue;
        float grad = load(p.rows, i);
        i64 at = entry * p.width + column;
        if (p.weight.type == F32) {
            atomicAdd((float*)p.weight.address + at, grad);
            continue;
        }
        u32* word = (u32*)p.weight.address + (at >> 1);
        int shift = (int)(at & 1) * 16;
        u32 old = *word, expected;
        do {
            expected = old;
            u16 bits = (u16)(expected >> shift);
            float sum = (p.weight.type == F16 ? half_to_float(bits) : brain_to_float(bits)) + grad;
            u16 next = p.weight.type == F16 ? float_to_half(sum) : float_to_brain(sum);
            old = atomicCAS(word, expected, (expected & ~(0xffffu << shift)) | ((u32)next << shift));
        } while (old != expected);
    }
}
