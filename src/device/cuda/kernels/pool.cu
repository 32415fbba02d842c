// Pooling of contiguous [N, C, H, W] tensors. One thread for each element written.

struct PoolArguments {
    // What is read: the operand, or the gradient of the result.
    Array in;
    // What is written: the result, or the gradient of the operand.
    Array out;
    // int64[planes][out_height][out_width]: the largest element's position within its plane.
    u64 indices;
    i64 planes;
    // Of the operand.
    i64 height, width;
    // Of the result.
    i64 out_height, out_width;
    i64 kernel[2], stride[2], padding[2], dilation[2];
};

extern "C" __global__ void max_pool(const __grid_constant__ PoolArguments p)
{
    i64* indices = (i64*)p.indices;
    i64 count = p.planes * p.out_height * p.out_width;
    for (i64 index = thread_index(); index < count; index += thread_count()) {
        u64 rest = (u64)index / (u64)p.out_width;
        i64 column = index - (i64)rest * p.out_width;
        i64 plane = (i64)(rest / (u64)p.out_height);
        i64 row = (i64)rest - plane * p.out_height;
        i64 top = row * p.stride[0] - p.padding[0];
        i64 left = column * p.stride[1] - p.padding[1];
        float best = -__int_as_float(0x7f800000);
        i64 where = -1;
        for (i64 i = 0; i < p.kernel[0]; ++i) {
            i64 h = top + i * p.dilation[0];
            if (h < 0 || h >= p.height) continue;
            for (i64 j = 0; j < p.kernel[1]; ++j) {
                i64 w = left + j * p.dilation[1];
                if (w < 0 || w >= p.width) continue;
                float value = load(p.in, (plane * p.height + h) * p.width + w);
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

// Gathers, so that nothing needs clearing and the sum has one order.
extern "C" __global__ void max_pool_grad(const __grid_constant__ PoolArguments p)
{
    const i64* indices = (const i64*)p.indices;
    i64 count = p.planes * p.height * p.width;
    i64 reach_h = (p.kernel[0] - 1) * p.dilation[0];
    i64 reach_w = (p.kernel[1] - 1) * p.dilation[1];
    for (i64 index = thread_index(); index < count; index += thread_count()) {
        u64 rest = (u64)index / (u64)p.width;
        i64 w = index - (i64)rest * p.width;
        i64 plane = (i64)(rest / (u64)p.height);
        i64 h = (i64)rest - plane * p.height;
        i64 here = h * p.width + w;
        // The first and last windows that may cover this element.
        i64 low_h = h + p.padding[0] - reach_h;
        i64 low_w = w + p.padding[1] - reach_w;
        i64 first_row = low_h <= 0 ? 0 : (low_h + p.stride[0] - 1) / p.stride[0];
        i64 first_column = low_w <= 0 ? 0 : (low_w + p.stride[1] - 1) / p.stride[1];
        i64 last_row = (h + p.padding[0]) / p.stride[0];
        i64 last_column = (w + p.padding[1]) / p.stride[1];
        if (last_row >= p.out_height) last_row = p.out_height - 1;
        if (last_column >= p.out_width) last_column = p.out_width - 1;
        float total = 0.0f;
        for (i64 row = first_row; row <= last_row; ++row)
            for (i64 column = first_column; column <= last_column; ++column) {
                i64 from = (plane * p.out_height + row) * p.out_width + column;
                if (indices[from] == here) total += load(p.in, from);
            }
        store(p.out, index, total);
    }
}

// The region of the operand behind element `i` of the result.
__device__ __forceinline__ i64 region_start(i64 i, i64 from, i64 to) { return i * from / to; }

__device__ __forceinline__ i64 region_end(i64 i, i64 from, i64 to) { return ((i + 1) * from + to - 1) / to; }

extern "C" __global__ void adaptive_avg_pool(const __grid_constant__ PoolArguments p)
{
    i64 count = p.planes * p.out_height * p.out_width;
    for (i64 index = thread_index(); index < count; index += thread_count()) {
        u64 rest = (u64)index / (u64)p.out_width;
        i64 column = index - (i64)rest * p.out_width;
        i64 plane = (i64)(rest / (u64)p.out_height);
        i64 row = (i64)rest - plane * p.out_height;
        i64 h0 = region_start(row, p.height, p.out_height), h1 = region_end(row, p.height, p.out_height);
        i64 w0 = region_start(column, p.width, p.out_width), w1 = region_end(column, p.width, p.out_width);
        float total = 0.0f;
        for (i64 h = h0; h < h1; ++h)
            for (i64 w = w0; w < w1; ++w) total += load(p.in, (plane * p.height + h) * p.width + w);
        store(p.out, index, total / (float)((h1 - h0) * (w1 - w0)));
    }
}

extern "C" __global__ void adaptive_avg_pool_grad(const __grid_constant__ PoolArguments p)
{
    i64 count = p.planes * p.height * p.width;
    for (i64 index = thread_index(); index < count; index += thread_count()) {
        u64 rest = (u64)index / (u64)p.width;
        i64 w = index - (i64)rest * p.width;
        i64 plane = (i64)(rest / (u64)p.height);
        i64 h = (i64)rest - plane * p.height;
        // Regions are ordered, so those around the proportional position are all that can cover h, w.
        i64 first_row = region_start(h, p.out_height, p.height);
        i64 last_row = region_end(h, p.out_height, p.height);
        i64 first_column = region_start(w, p.out_width, p.width);
        i64 last_column = region_end(w, p.out_width, p.width);
        float total = 0.0f;
        for (i64 row = first_row; row < last_row; ++row) {
            i64 h0 = region_start(row, p.height, p.out_height), h1 = region_end(row, p.height, p.out_height);
            for (i64 column = first_column; column < last_column; ++column) {
                i64 w0 = region_start(column, p.width, p.out_width);
                i64 w1 = region_end(column, p.width, p.out_width);
                float grad = load(p.in, (plane * p.out_height + row) * p.out_width + column);
                total += grad / (float)((h1 - h0) * (w1 - w0));
            }
        }
        store(p.out, index, total);
    }
}
