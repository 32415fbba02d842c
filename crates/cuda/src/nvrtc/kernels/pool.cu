// Pooling of contiguous [N, C, H, W] tensors. One thread for each element written.

struct PoolArguments {
    // What is read: the operand, or the gradient of the result.
    Array input;
    // What is written: the result, or the gradient of the operand.
    Array out;
    // int64[planes][out_height][out_width]: the largest element's position within its plane.
    u64 indices;
    i64 planes;
    // Of the operand.
    int height, width;
    // Of the result.
    int out_height, out_width;
    int kernel[2], stride[2], padding[2], dilation[2];
};

// The plane of an element, and its place there.
__device__ __forceinline__ i64 split(i64 index, int height, int width, int& row, int& column)
{
    i64 across, down;
    i64 plane = divide(divide(index, width, across), height, down);
    row = (int)down;
    column = (int)across;
    return plane;
}

extern "C" __global__ void max_pool(const __grid_constant__ PoolArguments p)
{
    i64* indices = (i64*)p.indices;
    i64 count = p.planes * p.out_height * p.out_width;
    for (i64 index = thread_index(); index < count; index += thread_count()) {
        int row, column;
        i64 plane = split(index, p.out_height, p.out_width, row, column);
        int top = row * p.stride[0] - p.padding[0];
        int left = column * p.stride[1] - p.padding[1];
        float best = -__int_as_float(0x7f800000);
        int where = -1;
        for (int i = 0; i < p.kernel[0]; ++i) {
            int h = top + i * p.dilation[0];
            if (h < 0 || h >= p.height) continue;
            for (int j = 0; j < p.kernel[1]; ++j) {
                int w = left + j * p.dilation[1];
                if (w < 0 || w >= p.width) continue;
                float value = load(p.input, (plane * p.height + h) * p.width + w);
                if (where < 0 || value > best || value != value) {
                    best = value;
                    where = h * p.width + w;
                }
            }
        }
        store(p.out, index, best);
        indices[index] = where;
    }
}

// Where windows tile the planes exactly, each element belongs to one: one thread for each window.
extern "C" __global__ void max_pool_grad_tiles(const __grid_constant__ PoolArguments p)
{
    const i64* indices = (const i64*)p.indices;
    i64 count = p.planes * p.out_height * p.out_width;
    for (i64 index = thread_index(); index < count; index += thread_count()) {
        int row, column;
        i64 plane = split(index, p.out_height, p.out_width, row, column);
        float grad = load(p.input, index);
        int largest = (int)indices[index];
        int top = row * p.kernel[0], left = column * p.kernel[1];
        i64 base = plane * p.height * p.width;
        for (int h = top; h < top + p.kernel[0]; ++h)
            for (int w = left; w < left + p.kernel[1]; ++w) {
                int here = h * p.width + w;
                store(p.out, base + here, here == largest ? grad : 0.0f);
            }
    }
}

// Gathers, so that nothing needs clearing and the sum has one order.
extern "C" __global__ void max_pool_grad(const __grid_constant__ PoolArguments p)
{
    const i64* indices = (const i64*)p.indices;
    i64 count = p.planes * p.height * p.width;
    int reach_h = (p.kernel[0] - 1) * p.dilation[0];
    int reach_w = (p.kernel[1] - 1) * p.dilation[1];
    for (i64 index = thread_index(); index < count; index += thread_count()) {
        int h, w;
        i64 plane = split(index, p.height, p.width, h, w);
        int here = h * p.width + w;
        // The first and last windows that may cover this element.
        int low_h = h + p.padding[0] - reach_h;
        int low_w = w + p.padding[1] - reach_w;
        int first_row = low_h <= 0 ? 0 : (low_h + p.stride[0] - 1) / p.stride[0];
        int first_column = low_w <= 0 ? 0 : (low_w + p.stride[1] - 1) / p.stride[1];
        int last_row = (h + p.padding[0]) / p.stride[0];
        int last_column = (w + p.padding[1]) / p.stride[1];
        if (last_row >= p.out_height) last_row = p.out_height - 1;
        if (last_column >= p.out_width) last_column = p.out_width - 1;
        float total = 0.0f;
        for (int row = first_row; row <= last_row; ++row)
            for (int column = first_column; column <= last_column; ++column) {
                i64 from = (plane * p.out_height + row) * p.out_width + column;
                if (indices[from] == here) total += load(p.input, from);
            }
        store(p.out, index, total);
    }
}

// The region of the operand behind element `i` of the result.
__device__ __forceinline__ int region_start(int i, int from, int to) { return i * from / to; }

__device__ __forceinline__ int region_end(int i, int from, int to) { return ((i + 1) * from + to - 1) / to; }

extern "C" __global__ void adaptive_avg_pool(const __grid_constant__ PoolArguments p)
{
    i64 count = p.planes * p.out_height * p.out_width;
    for (i64 index = thread_index(); index < count; index += thread_count()) {
        int row, column;
        i64 plane = split(index, p.out_height, p.out_width, row, column);
        int h0 = region_start(row, p.height, p.out_height), h1 = region_end(row, p.height, p.out_height);
        int w0 = region_start(column, p.width, p.out_width), w1 = region_end(column, p.width, p.out_width);
        float total = 0.0f;
        for (int h = h0; h < h1; ++h)
            for (int w = w0; w < w1; ++w) total += load(p.input, (plane * p.height + h) * p.width + w);
        store(p.out, index, total / (float)((h1 - h0) * (w1 - w0)));
    }
}

extern "C" __global__ void adaptive_avg_pool_grad(const __grid_constant__ PoolArguments p)
{
    i64 count = p.planes * p.height * p.width;
    for (i64 index = thread_index(); index < count; index += thread_count()) {
        int h, w;
        i64 plane = split(index, p.height, p.width, h, w);
        // Regions are ordered, so those around the proportional position are all that can cover h, w.
        int first_row = region_start(h, p.out_height, p.height);
        int last_row = region_end(h, p.out_height, p.height);
        int first_column = region_start(w, p.out_width, p.width);
        int last_column = region_end(w, p.out_width, p.width);
        float total = 0.0f;
        for (int row = first_row; row < last_row; ++row) {
            int h0 = region_start(row, p.height, p.out_height), h1 = region_end(row, p.height, p.out_height);
            for (int column = first_column; column < last_column; ++column) {
                int w0 = region_start(column, p.width, p.out_width);
                int w1 = region_end(column, p.width, p.out_width);
                float grad = load(p.input, (plane * p.out_height + row) * p.out_width + column);
                total += grad / (float)((h1 - h0) * (w1 - w0));
            }
        }
        store(p.out, index, total);
    }
}
