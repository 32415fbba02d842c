// What all kernels of attention take and share. Must agree with `AttentionArguments` in attention.rs.

// Positions that a block works on at a time. Must agree with `TILE` in attention.rs.
#define TILE 64

struct View4 {
    Array array;
    // Of batch, head, position, feature.
    i64 strides[4];
};

struct AttentionArguments {
    View4 query;
    View4 key;
    View4 value;
    View4 out;
    // Gradient of the result.
    View4 grad;
    View4 grad_query;
    View4 grad_key;
    View4 grad_value;
    // What is added to each scaled score, and its gradient; nothing where there is no address.
    View4 bias;
    View4 grad_bias;
    // float, by batch, head, position.
    u64 log_sum_exp;
    i64 log_sum_exp_strides[3];
    // float[batch][query_heads][queries]: the sum of grad * out over features.
    u64 delta;
    u64 seed;
    // The first sample of this launch; the grid counts from it.
    i64 first_sample;
    i64 query_heads;
    i64 key_heads;
    int queries;
    int keys;
    int width;
    int is_causal;
    float scale;
    // Share of scores dropped.
    float dropout;
    // One over the scale.
    float inverse_scale;
    float unused;
};

__device__ __forceinline__ i64 base_of(const View4& view, i64 sample, i64 head)
{
    return sample * view.strides[0] + head * view.strides[1];
}

__device__ __forceinline__ float log_sum_exp_of(const AttentionArguments& p, i64 sample, i64 head, int query)
{
    float sum = ((const float*)p.log_sum_exp)[sample * p.log_sum_exp_strides[0] + head * p.log_sum_exp_strides[1] +
                                              query * p.log_sum_exp_strides[2]];
    // Of a row in which a mask hides everything; no score has a share in it.
    return sum == -__int_as_float(0x7f800000) ? __int_as_float(0x7f800000) : sum;
}

__device__ __forceinline__ bool is_hidden(const AttentionArguments& p, int query, int key)
{
    return key >= p.keys || query >= p.queries || (p.is_causal && key > query);
}

// What a mask adds to a score before it is scaled. Hidden scores are the caller's to skip.
__device__ __forceinline__ float bias_of(const AttentionArguments& p, i64 sample, i64 head, int query, int key)
{
    i64 at = base_of(p.bias, sample, head) + min(query, p.queries - 1) * p.bias.strides[2]
        + min(key, p.keys - 1) * p.bias.strides[3];
    return load(p.bias.array, at) * p.inverse_scale;
}

// Stores the gradient of what was added to a score, from that of the score before it is scaled.
__device__ __forceinline__ void write_grad_bias(const AttentionArguments& p, i64 sample, i64 head, int query, int key,
                                                float grad)
{
    if (query >= p.queries || key >= p.keys) return;
    i64 at = base_of(p.grad_bias, sample, head) + query * p.grad_bias.strides[2] + key * p.grad_bias.strides[3];
    store(p.grad_bias.array, at, grad * p.inverse_scale);
}

// The sum of grad * out over features, one warp for each query.
__device__ __forceinline__ void write_delta(const AttentionArguments& p)
{
    i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y;
    i64 query = row % p.queries, head = row / p.queries;
    if (head >= p.query_heads) return;
    i64 sample = p.first_sample + blockIdx.y;
    i64 grad = base_of(p.grad, sample, head) + query * p.grad.strides[2];
    i64 out = base_of(p.out, sample, head) + query * p.out.strides[2];
    float total = 0.0f;
    for (int d = threadIdx.x; d < p.width; d += 32)
        total += load(p.grad.array, grad + d * p.grad.strides[3]) * load(p.out.array, out + d * p.out.strides[3]);
    total = warp_sum(total);
    if (threadIdx.x == 0) ((float*)p.delta)[((i64)blockIdx.y * p.query_heads + head) * p.queries + query] = total;
}
