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

// Whether neighbours of the last dimension, the first at an even place, can be read as one of twice the size.
__device__ __forceinline__ bool is_paired(const View4& view, int size)
{
    return (view.array.address & (2 * size - 1)) == 0 && view.strides[3] == 1
        && ((view.strides[0] | view.strides[1] | view.strides[2]) & 1) == 0;
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
