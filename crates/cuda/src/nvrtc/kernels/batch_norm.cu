// Batch normalization of contiguous [N, C, area] tensors. Statistics are float32; the tensors may be half.

struct BatchNormArguments {
    Array x;
    // The result, or the gradient of the operand.
    Array y;
    // The gradient of the result.
    Array grad;
    Array weight;
    Array bias;
    Array mean;
    // 1 / sqrt(variance + eps); inference passes the variance itself.
    Array inverse_std;
    Array running_mean;
    Array running_var;
    Array grad_weight;
    Array grad_bias;
    // float[splits][2][channels], and behind it float[2][channels] for the backward pass.
    u64 partial;
    i64 samples;
    i64 channels;
    i64 area;
    i64 splits;
    float momentum;
    float eps;
};

// Where the i-th element of a channel is.
__device__ __forceinline__ i64 place(const BatchNormArguments& p, i64 channel, i64 i)
{
    i64 within;
    i64 sample = divide(i, p.area, within);
    return (sample * p.channels + channel) * p.area + within;
}

// The elements of a channel that belong to one split, in groups of eight.
__device__ __forceinline__ void share_of(const BatchNormArguments& p, i64 split, i64& from, i64& to)
{
    i64 count = p.samples * p.area;
    i64 each = ((count + p.splits - 1) / p.splits + 7) / 8 * 8;
    from = split * each;
    to = from + each < count ? from + each : count;
}

// Sums of x - x0 and its square, x0 being the channel's first element: one pass, and no cancellation
// when the mean is large beside the deviation.
template <int V>
__device__ __forceinline__ void statistics(const BatchNormArguments& p)
{
    i64 channel = (i64)blockIdx.x;
    i64 from, to;
    share_of(p, (i64)blockIdx.y, from, to);
    float shift = load(p.x, channel * p.area);
    float first = 0.0f, second = 0.0f;
    for (i64 i = from + (i64)threadIdx.x * V; i < to; i += (i64)blockDim.x * V) {
        float values[V];
        load_group<V>(p.x, place(p, channel, i), 1, values);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            float d = values[k] - shift;
            first += d;
            second += d * d;
        }
    }
    first = block_sum(first);
    second = block_sum(second);
    if (threadIdx.x == 0) {
        float* partial = (float*)p.partial + (i64)blockIdx.y * 2 * p.channels;
        partial[channel] = first;
        partial[p.channels + channel] = second;
    }
}

extern "C" __global__ void batch_norm_statistics8(const __grid_constant__ BatchNormArguments p) { statistics<8>(p); }

extern "C" __global__ void batch_norm_statistics4(const __grid_constant__ BatchNormArguments p) { statistics<4>(p); }

extern "C" __global__ void batch_norm_statistics1(const __grid_constant__ BatchNormArguments p) { statistics<1>(p); }

extern "C" __global__ void batch_norm_finish(const __grid_constant__ BatchNormArguments p)
{
    i64 channel = thread_index();
    if (channel >= p.channels) return;
    const float* partial = (const float*)p.partial;
    double first = 0.0, second = 0.0;
    for (i64 split = 0; split < p.splits; ++split) {
        first += partial[split * 2 * p.channels + channel];
        second += partial[split * 2 * p.channels + p.channels + channel];
    }
    double count = (double)(p.samples * p.area);
    double offset = first / count;
    double variance = second / count - offset * offset;
    if (variance < 0.0) variance = 0.0;
    float mean = (float)((double)load(p.x, channel * p.area) + offset);
    store(p.mean, channel, mean);
    store(p.inverse_std, channel, (float)(1.0 / sqrt(variance + (double)p.eps)));
    if (p.running_mean.address != 0) {
        float old = load(p.running_mean, channel);
        store(p.running_mean, channel, (1.0f - p.momentum) * old + p.momentum * mean);
    }
    if (p.running_var.address != 0) {
        float old = load(p.running_var, channel);
        double unbiased = variance * (count / (count > 1.0 ? count - 1.0 : 1.0));
        store(p.running_var, channel, (1.0f - p.momentum) * old + p.momentum * (float)unbiased);
    }
}

// One block for a part of one plane, so that the channel's numbers are read once: blockIdx.x counts
// planes, blockIdx.y parts of a plane.
template <int V, int INFERENCE>
__device__ __forceinline__ void normalize(const BatchNormArguments& p)
{
    for (i64 plane = (i64)blockIdx.x * blockDim.y + threadIdx.y; plane < p.samples * p.channels;
         plane += (i64)gridDim.x * blockDim.y) {
        i64 channel;
        divide(plane, p.channels, channel);
        float mean = load(p.mean, channel);
        float inverse = load(p.inverse_std, channel);
        if (INFERENCE) inverse = rsqrtf(inverse + p.eps);
        float scale = p.weight.address ? load(p.weight, channel) : 1.0f;
        float bias = p.bias.address ? load(p.bias, channel) : 0.0f;
        scale *= inverse;
        for (i64 i = ((i64)blockIdx.y * blockDim.x + threadIdx.x) * V; i < p.area;
             i += (i64)gridDim.y * blockDim.x * V) {
            float values[V];
            load_group<V>(p.x, plane * p.area + i, 1, values);
#pragma unroll
            for (int k = 0; k < V; ++k) values[k] = (values[k] - mean) * scale + bias;
            store_group<V>(p.y, plane * p.area + i, 1, values);
        }
    }
}

extern "C" __global__ void batch_norm_apply8(const __grid_constant__ BatchNormArguments p) { normalize<8, 0>(p); }

extern "C" __global__ void batch_norm_apply4(const __grid_constant__ BatchNormArguments p) { normalize<4, 0>(p); }

extern "C" __global__ void batch_norm_apply1(const __grid_constant__ BatchNormArguments p) { normalize<1, 0>(p); }

extern "C" __global__ void batch_norm_inference8(const __grid_constant__ BatchNormArguments p) { normalize<8, 1>(p); }

extern "C" __global__ void batch_norm_inference4(const __grid_constant__ BatchNormArguments p) { normalize<4, 1>(p); }

extern "C" __global__ void batch_norm_inference1(const __grid_constant__ BatchNormArguments p) { normalize<1, 1>(p); }

// Sums of the gradient, and of the gradient times x - mean.
template <int V>
__device__ __forceinline__ void grad_sums(const BatchNormArguments& p)
{
    i64 channel = (i64)blockIdx.x;
    i64 from, to;
    share_of(p, (i64)blockIdx.y, from, to);
    float mean = load(p.mean, channel);
    float first = 0.0f, second = 0.0f;
    for (i64 i = from + (i64)threadIdx.x * V; i < to; i += (i64)blockDim.x * V) {
        float x[V], grad[V];
        i64 at = place(p, channel, i);
        load_group<V>(p.x, at, 1, x);
        load_group<V>(p.grad, at, 1, grad);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            first += grad[k];
            second += grad[k] * (x[k] - mean);
        }
    }
    first = block_sum(first);
    second = block_sum(second);
    if (threadIdx.x == 0) {
        float* partial = (float*)p.partial + (i64)blockIdx.y * 2 * p.channels;
        partial[channel] = first;
        partial[p.channels + channel] = second;
    }
}

extern "C" __global__ void batch_norm_grad_sums8(const __grid_constant__ BatchNormArguments p) { grad_sums<8>(p); }

extern "C" __global__ void batch_norm_grad_sums4(const __grid_constant__ BatchNormArguments p) { grad_sums<4>(p); }

extern "C" __global__ void batch_norm_grad_sums1(const __grid_constant__ BatchNormArguments p) { grad_sums<1>(p); }

extern "C" __global__ void batch_norm_grad_finish(const __grid_constant__ BatchNormArguments p)
{
    i64 channel = thread_index();
    if (channel >= p.channels) return;
    float* partial = (float*)p.partial;
    double first = 0.0, second = 0.0;
    for (i64 split = 0; split < p.splits; ++split) {
        first += partial[split * 2 * p.channels + channel];
        second += partial[split * 2 * p.channels + p.channels + channel];
    }
    float inverse = load(p.inverse_std, channel);
    if (p.grad_weight.address) store(p.grad_weight, channel, (float)second * inverse);
    if (p.grad_bias.address) store(p.grad_bias, channel, (float)first);
    double count = (double)(p.samples * p.area);
    float* means = partial + p.splits * 2 * p.channels;
    means[channel] = (float)(first / count);
    means[p.channels + channel] = (float)(second / count) * inverse * inverse;
}

template <int V>
__device__ __forceinline__ void grad_input(const BatchNormArguments& p)
{
    const float* means = (const float*)p.partial + p.splits * 2 * p.channels;
    for (i64 plane = (i64)blockIdx.x * blockDim.y + threadIdx.y; plane < p.samples * p.channels;
         plane += (i64)gridDim.x * blockDim.y) {
        i64 channel;
        divide(plane, p.channels, channel);
        float mean = load(p.mean, channel);
        float scale = (p.weight.address ? load(p.weight, channel) : 1.0f) * load(p.inverse_std, channel);
        float of_grad = means[channel];
        float of_product = means[p.channels + channel];
        for (i64 i = ((i64)blockIdx.y * blockDim.x + threadIdx.x) * V; i < p.area;
             i += (i64)gridDim.y * blockDim.x * V) {
            float x[V], grad[V];
            i64 at = plane * p.area + i;
            load_group<V>(p.x, at, 1, x);
            load_group<V>(p.grad, at, 1, grad);
#pragma unroll
            for (int k = 0; k < V; ++k) grad[k] = (grad[k] - of_grad - (x[k] - mean) * of_product) * scale;
            store_group<V>(p.y, at, 1, grad);
        }
    }
}

extern "C" __global__ void batch_norm_grad_input8(const __grid_constant__ BatchNormArguments p) { grad_input<8>(p); }

extern "C" __global__ void batch_norm_grad_input4(const __grid_constant__ BatchNormArguments p) { grad_input<4>(p); }

extern "C" __global__ void batch_norm_grad_input1(const __grid_constant__ BatchNormArguments p) { grad_input<1>(p); }
