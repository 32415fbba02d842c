// Layer normalization over rows of contiguous tensors: a warp a row where a warp's registers hold it, else a
// block a row.

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

// A row in the registers of a warp: groups of four neighbours, G of them a lane.
template <int G>
struct Row {
    float values[G][4];

    __device__ __forceinline__ void read(const Array& array, i64 base, i64 width)
    {
#pragma unroll
        for (int g = 0; g < G; ++g) {
            i64 i = ((i64)g * 32 + threadIdx.x) * 4;
            if (i < width) {
                load_group<4>(array, base + i, 1, values[g]);
            } else {
                values[g][0] = values[g][1] = values[g][2] = values[g][3] = 0.0f;
            }
        }
    }
};

// Rows of up to 128 G elements, a multiple of four; blocks of 32 x 4.
template <int G>
__device__ __forceinline__ void layer_norm_warp(const LayerNormArguments& p)
{
    for (i64 row = (i64)blockIdx.x * 4 + threadIdx.y; row < p.rows; row += (i64)gridDim.x * 4) {
        i64 base = row * p.width;
        Row<G> x;
        x.read(p.x, base, p.width);
        float total = 0.0f;
#pragma unroll
        for (int g = 0; g < G; ++g) total += (x.values[g][0] + x.values[g][1]) + (x.values[g][2] + x.values[g][3]);
        float mean = warp_sum(total) / (float)p.width;
        float squares = 0.0f;
#pragma unroll
        for (int g = 0; g < G; ++g) {
            if (((i64)g * 32 + threadIdx.x) * 4 >= p.width) continue;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                float d = x.values[g][k] - mean;
                squares += d * d;
            }
        }
        float inverse = rsqrtf(warp_sum(squares) / (float)p.width + p.eps);
        if (threadIdx.x == 0) {
            store(p.mean, row, mean);
            store(p.inverse_std, row, inverse);
        }
#pragma unroll
        for (int g = 0; g < G; ++g) {
            i64 i = ((i64)g * 32 + threadIdx.x) * 4;
            if (i >= p.width) continue;
            float weight[4] = { 1.0f, 1.0f, 1.0f, 1.0f }, bias[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
            if (p.weight.address) load_group<4>(p.weight, i, 1, weight);
            if (p.bias.address) load_group<4>(p.bias, i, 1, bias);
#pragma unroll
            for (int k = 0; k < 4; ++k) x.values[g][k] = (x.values[g][k] - mean) * inverse * weight[k] + bias[k];
            store_group<4>(p.y, base + i, 1, x.values[g]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) layer_norm_warp8(const __grid_constant__ LayerNormArguments p)
{
    layer_norm_warp<8>(p);
}

extern "C" __global__ void __launch_bounds__(128) layer_norm_warp16(const __grid_constant__ LayerNormArguments p)
{
    layer_norm_warp<16>(p);
}

// The operand's gradient, and in the same pass each block's part of the sums for weight and bias.
template <int G>
__device__ __forceinline__ void layer_norm_grad_warp(const LayerNormArguments& p)
{
    float of_bias[G][4] = {}, of_weight[G][4] = {};
    for (i64 row = (i64)blockIdx.x * 4 + threadIdx.y; row < p.rows; row += (i64)gridDim.x * 4) {
        i64 base = row * p.width;
        Row<G> grad, x;
        grad.read(p.grad, base, p.width);
        x.read(p.x, base, p.width);
        float mean = load(p.mean, row), inverse = load(p.inverse_std, row);
        float first = 0.0f, second = 0.0f;
#pragma unroll
        for (int g = 0; g < G; ++g) {
            i64 i = ((i64)g * 32 + threadIdx.x) * 4;
            if (i >= p.width) continue;
            float weight[4] = { 1.0f, 1.0f, 1.0f, 1.0f };
            if (p.weight.address) load_group<4>(p.weight, i, 1, weight);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                float normal = (x.values[g][k] - mean) * inverse;
                of_bias[g][k] += grad.values[g][k];
                of_weight[g][k] += grad.values[g][k] * normal;
                x.values[g][k] = normal;
                grad.values[g][k] *= weight[k];
                first += grad.values[g][k];
                second += grad.values[g][k] * normal;
            }
        }
        first = warp_sum(first) / (float)p.width;
        second = warp_sum(second) / (float)p.width;
#pragma unroll
        for (int g = 0; g < G; ++g) {
            i64 i = ((i64)g * 32 + threadIdx.x) * 4;
            if (i >= p.width) continue;
#pragma unroll
            for (int k = 0; k < 4; ++k)
                x.values[g][k] = (grad.values[g][k] - first - x.values[g][k] * second) * inverse;
            store_group<4>(p.y, base + i, 1, x.values[g]);
        }
    }
    // The block's four warps in turn, in shared memory.
    __shared__ float sums[2][G * 128];
    for (int warp = 0; warp < 4; ++warp) {
        if ((int)threadIdx.y == warp) {
#pragma unroll
            for (int g = 0; g < G; ++g) {
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    int i = (g * 32 + threadIdx.x) * 4 + k;
                    sums[0][i] = of_bias[g][k] + (warp > 0 ? sums[0][i] : 0.0f);
                    sums[1][i] = of_weight[g][k] + (warp > 0 ? sums[1][i] : 0.0f);
                }
            }
        }
        __syncthreads();
    }
    float* partial = (float*)p.partial + (i64)blockIdx.x * 2 * p.width;
    for (int i = threadIdx.y * 32 + threadIdx.x; i < p.width; i += 128) {
        partial[i] = sums[0][i];
        partial[p.width + i] = sums[1][i];
    }
}

extern "C" __global__ void __launch_bounds__(128) layer_norm_grad_warp8(const __grid_constant__ LayerNormArguments p)
{
    layer_norm_grad_warp<8>(p);
}

extern "C" __global__ void __launch_bounds__(128) layer_norm_grad_warp16(const __grid_constant__ LayerNormArguments p)
{
    layer_norm_grad_warp<16>(p);
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

// Adds up the parts of all blocks; blocks of 32 x 8, a column a thread of the first row.
extern "C" __global__ void layer_norm_grad_finish(const __grid_constant__ LayerNormArguments p)
{
    __shared__ float of_row[2][8][33];
    const float* partial = (const float*)p.partial;
    i64 column = (i64)blockIdx.x * 32 + threadIdx.x;
    float first = 0.0f, second = 0.0f;
    if (column < p.width) {
        for (i64 split = threadIdx.y; split < p.splits; split += 8) {
            first += partial[split * 2 * p.width + column];
            second += partial[split * 2 * p.width + p.width + column];
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
        if (p.grad_bias.address) store(p.grad_bias, column, first);
        if (p.grad_weight.address) store(p.grad_weight, column, second);
    }
}
