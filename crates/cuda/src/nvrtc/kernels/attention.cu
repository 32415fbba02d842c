// Scaled dot-product attention without the matrix of scores in memory, after FlashAttention, in float32.
//
// A block has 256 threads, 16 x 16, and works on tiles of 64 positions: thread (tx, ty) owns four rows
// (ty * 4 ...) and four columns (tx * 4 ...) of a tile of scores. Tiles lie in shared memory with the
// contracted dimension first, so that a thread reads its four neighbours in one load.

// Row length of a tile in shared memory; a multiple of four that spreads columns over the banks.
#define PITCH 68

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

// Not inlined, like the other helpers that touch memory: copies of them for each use would double the time
// that the compiler takes.
__device__ __noinline__ float4 load_four(const View4& view, i64 base, int position, int positions, int feature,
                                         int width)
{
    float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (position < positions && feature < width) {
        i64 at = base + position * view.strides[2] + feature * view.strides[3];
        if (feature + 4 <= width) {
            load_group<4>(view.array, at, view.strides[3], values);
        } else {
            for (int k = 0; feature + k < width; ++k) {
                float value = load(view.array, at + k * view.strides[3]);
                values[0] = k == 0 ? value : values[0];
                values[1] = k == 1 ? value : values[1];
                values[2] = k == 2 ? value : values[2];
            }
        }
    }
    return make_float4(values[0], values[1], values[2], values[3]);
}

__device__ __noinline__ void store_four(const View4& view, i64 at, int count, float4 wide)
{
    float values[4] = {wide.x, wide.y, wide.z, wide.w};
    if (count >= 4) {
        store_group<4>(view.array, at, view.strides[3], values);
        return;
    }
    store(view.array, at, wide.x);
    if (count > 1) store(view.array, at + view.strides[3], wide.y);
    if (count > 2) store(view.array, at + 2 * view.strides[3], wide.z);
}

// tile[feature][position]
template <int D>
__device__ __noinline__ void load_turned(float* tile, const View4& view, i64 base, int first, int positions,
                                            int width)
{
    for (int i = threadIdx.x; i < TILE * D / 4; i += 256) {
        int row = i % TILE, feature = i / TILE * 4;
        float4 values = load_four(view, base, first + row, positions, feature, width);
        tile[feature * PITCH + row] = values.x;
        tile[(feature + 1) * PITCH + row] = values.y;
        tile[(feature + 2) * PITCH + row] = values.z;
        tile[(feature + 3) * PITCH + row] = values.w;
    }
}

// tile[position][feature]
template <int D>
__device__ __noinline__ void load_plain(float* tile, const View4& view, i64 base, int first, int positions,
                                           int width)
{
    for (int i = threadIdx.x; i < TILE * D / 4; i += 256) {
        int feature = i % (D / 4) * 4, row = i / (D / 4);
        *(float4*)(tile + row * D + feature) = load_four(view, base, first + row, positions, feature, width);
    }
}

// result[i][j] = sum over features of rows[feature][ty * 4 + i] * columns[feature][tx * 4 + j]
template <int D>
__device__ __forceinline__ void multiply(const float* rows, const float* columns, int ty, int tx, float result[4][4])
{
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) result[i][j] = 0.0f;
#pragma unroll 8
    for (int d = 0; d < D; ++d) {
        float4 a = *(const float4*)(rows + d * PITCH + ty * 4);
        float4 b = *(const float4*)(columns + d * PITCH + tx * 4);
        float x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) result[i][j] += x[i] * y[j];
    }
}

// sums[i][c * 4 + j] += sum over k of scores[k][ty * 4 + i] * plain[k][c * 64 + tx * 4 + j]
template <int D>
__device__ __forceinline__ void accumulate(const float* scores, const float* plain, int ty, int tx,
                                           float sums[4][D / 16])
{
#pragma unroll 4
    for (int k = 0; k < TILE; ++k) {
        float4 a = *(const float4*)(scores + k * PITCH + ty * 4);
        float x[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int c = 0; c < D / 64; ++c) {
            float4 b = *(const float4*)(plain + k * D + c * 64 + tx * 4);
            float y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[i][c * 4 + j] += x[i] * y[j];
        }
    }
}

// scores[tx * 4 + j][ty * 4 + i] = values[i][j]
__device__ __forceinline__ void keep_scores(float* scores, int ty, int tx, const float values[4][4])
{
#pragma unroll
    for (int j = 0; j < 4; ++j)
        *(float4*)(scores + (tx * 4 + j) * PITCH + ty * 4) =
            make_float4(values[0][j], values[1][j], values[2][j], values[3][j]);
}

template <int D>
__device__ __forceinline__ void write_rows(const View4& view, i64 base, int first, int positions, int width, int ty,
                                           int tx, const float sums[4][D / 16])
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        int position = first + ty * 4 + i;
        if (position >= positions) continue;
#pragma unroll
        for (int c = 0; c < D / 64; ++c) {
            int feature = c * 64 + tx * 4;
            i64 at = base + position * view.strides[2] + feature * view.strides[3];
            if (feature < width)
                store_four(view, at, width - feature,
                           make_float4(sums[i][c * 4], sums[i][c * 4 + 1], sums[i][c * 4 + 2], sums[i][c * 4 + 3]));
        }
    }
}

// Four random words for neighbouring scores of a query.
__device__ __noinline__ Words draw(const AttentionArguments& p, i64 head, int query, int key)
{
    u64 counter = ((u64)head * (u64)p.queries + (u64)query) * (u64)((p.keys + 3) / 4) + (u64)(key / 4);
    return philox(counter, p.seed);
}

// What four neighbouring scores of a query are multiplied by: zero or 1 / (1 - dropout).
__device__ __forceinline__ void keep_factors(const AttentionArguments& p, i64 head, int query, int key, float* factors)
{
    Words words = { { ~0u, ~0u, ~0u, ~0u } };
    float scale = 1.0f;
    if (p.dropout > 0.0f) {
        words = draw(p, head, query, key);
        scale = p.dropout < 1.0f ? 1.0f / (1.0f - p.dropout) : 0.0f;
    }
    factors[0] = unit(words.at[0]) >= p.dropout ? scale : 0.0f;
    factors[1] = unit(words.at[1]) >= p.dropout ? scale : 0.0f;
    factors[2] = unit(words.at[2]) >= p.dropout ? scale : 0.0f;
    factors[3] = unit(words.at[3]) >= p.dropout ? scale : 0.0f;
}

template <int D>
__device__ __forceinline__ void forward(const AttentionArguments& p, float* shared)
{
    float* turned_query = shared;
    float* other = turned_query + D * PITCH;
    float* scores = other + D * PITCH;
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    i64 sample = p.first_sample + (i64)blockIdx.x / p.query_heads;
    i64 head = (i64)blockIdx.x % p.query_heads;
    i64 key_head = head / (p.query_heads / p.key_heads);
    i64 absolute_head = sample * p.query_heads + head;
    int first_query = blockIdx.y * TILE;
    i64 key_base = base_of(p.key, sample, key_head), value_base = base_of(p.value, sample, key_head);
    float largest[4], total[4], sums[4][D / 16];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        largest[i] = -__int_as_float(0x7f800000);
        total[i] = 0.0f;
#pragma unroll
        for (int j = 0; j < D / 16; ++j) sums[i][j] = 0.0f;
    }
    load_turned<D>(turned_query, p.query, base_of(p.query, sample, head), first_query, p.queries, p.width);
    int last_key = p.is_causal ? min(p.keys, first_query + TILE) : p.keys;
    for (int first_key = 0; first_key < last_key; first_key += TILE) {
        load_turned<D>(other, p.key, key_base, first_key, p.keys, p.width);
        __syncthreads();
        float s[4][4];
        multiply<D>(turned_query, other, ty, tx, s);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int query = first_query + ty * 4 + i;
            float most = largest[i];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                bool hidden = is_hidden(p, query, first_key + tx * 4 + j);
                if (p.bias.array.address) s[i][j] += bias_of(p, sample, head, query, first_key + tx * 4 + j);
                s[i][j] = hidden ? -__int_as_float(0x7f800000) : s[i][j] * p.scale;
                most = fmaxf(most, s[i][j]);
            }
#pragma unroll
            for (int other_lane = 8; other_lane > 0; other_lane >>= 1)
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, other_lane));
            // A row with nothing to see yet keeps its zeros.
            float reference = most == -__int_as_float(0x7f800000) ? 0.0f : most;
            float shrink = expf(largest[i] - reference);
            float sum = 0.0f, factors[4];
            keep_factors(p, absolute_head, query, first_key + tx * 4, factors);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                s[i][j] = expf(s[i][j] - reference);
                sum += s[i][j];
                s[i][j] *= factors[j];
            }
#pragma unroll
            for (int other_lane = 8; other_lane > 0; other_lane >>= 1)
                sum += __shfl_xor_sync(0xffffffffu, sum, other_lane);
            total[i] = total[i] * shrink + sum;
            largest[i] = most;
#pragma unroll
            for (int j = 0; j < D / 16; ++j) sums[i][j] *= shrink;
        }
        __syncthreads();
        keep_scores(scores, ty, tx, s);
        load_plain<D>(other, p.value, value_base, first_key, p.keys, p.width);
        __syncthreads();
        accumulate<D>(scores, other, ty, tx, sums);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        int query = first_query + ty * 4 + i;
        float inverse = total[i] > 0.0f ? 1.0f / total[i] : 0.0f;
#pragma unroll
        for (int j = 0; j < D / 16; ++j) sums[i][j] *= inverse;
        if (tx == 0 && query < p.queries && p.log_sum_exp)
            ((float*)p.log_sum_exp)[sample * p.log_sum_exp_strides[0] + head * p.log_sum_exp_strides[1] +
                                    query * p.log_sum_exp_strides[2]] = largest[i] + logf(total[i]);
    }
    write_rows<D>(p.out, base_of(p.out, sample, head), first_query, p.queries, p.width, ty, tx, sums);
}

extern __shared__ float4 shared_memory[];

extern "C" __global__ void __launch_bounds__(256) attention64(const __grid_constant__ AttentionArguments p)
{
    forward<64>(p, (float*)shared_memory);
}

extern "C" __global__ void __launch_bounds__(256) attention128(const __grid_constant__ AttentionArguments p)
{
    forward<128>(p, (float*)shared_memory);
}

extern "C" __global__ void attention_delta(const __grid_constant__ AttentionArguments p) { write_delta(p); }

// One block for each tile of queries.
template <int D>
__device__ __forceinline__ void grad_queries(const AttentionArguments& p, float* shared)
{
    float* turned_query = shared;
    float* turned_grad = turned_query + D * PITCH;
    float* other = turned_grad + D * PITCH;
    float* scores = other + D * PITCH;
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    i64 local_sample = (i64)blockIdx.x / p.query_heads;
    i64 sample = p.first_sample + local_sample;
    i64 head = (i64)blockIdx.x % p.query_heads;
    i64 key_head = head / (p.query_heads / p.key_heads);
    i64 absolute_head = sample * p.query_heads + head;
    int first_query = blockIdx.y * TILE;
    i64 key_base = base_of(p.key, sample, key_head), value_base = base_of(p.value, sample, key_head);
    float sums[4][D / 16], normal[4], delta[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        int query = min(first_query + ty * 4 + i, p.queries - 1);
        normal[i] = log_sum_exp_of(p, sample, head, query);
        delta[i] = ((const float*)p.delta)[(local_sample * p.query_heads + head) * p.queries + query];
#pragma unroll
        for (int j = 0; j < D / 16; ++j) sums[i][j] = 0.0f;
    }
    load_turned<D>(turned_query, p.query, base_of(p.query, sample, head), first_query, p.queries, p.width);
    load_turned<D>(turned_grad, p.grad, base_of(p.grad, sample, head), first_query, p.queries, p.width);
    int last_key = p.is_causal ? min(p.keys, first_query + TILE) : p.keys;
    for (int first_key = 0; first_key < last_key; first_key += TILE) {
        load_turned<D>(other, p.key, key_base, first_key, p.keys, p.width);
        __syncthreads();
        float s[4][4], g[4][4];
        multiply<D>(turned_query, other, ty, tx, s);
        __syncthreads();
        load_turned<D>(other, p.value, value_base, first_key, p.keys, p.width);
        __syncthreads();
        multiply<D>(turned_grad, other, ty, tx, g);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int query = first_query + ty * 4 + i;
            float factors[4];
            keep_factors(p, absolute_head, query, first_key + tx * 4, factors);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                int key = first_key + tx * 4 + j;
                bool hidden = is_hidden(p, query, key);
                if (p.bias.array.address) s[i][j] += bias_of(p, sample, head, query, key);
                float probability = hidden ? 0.0f : expf(s[i][j] * p.scale - normal[i]);
                s[i][j] = probability * (g[i][j] * factors[j] - delta[i]) * p.scale;
                if (p.grad_bias.array.address) write_grad_bias(p, sample, head, query, key, s[i][j]);
            }
        }
        keep_scores(scores, ty, tx, s);
        load_plain<D>(other, p.key, key_base, first_key, p.keys, p.width);
        __syncthreads();
        accumulate<D>(scores, other, ty, tx, sums);
        __syncthreads();
    }
    write_rows<D>(p.grad_query, base_of(p.grad_query, sample, head), first_query, p.queries, p.width, ty, tx, sums);
}

extern "C" __global__ void __launch_bounds__(256) attention_grad_queries64(const __grid_constant__ AttentionArguments p)
{
    grad_queries<64>(p, (float*)shared_memory);
}

extern "C" __global__ void __launch_bounds__(256)
    attention_grad_queries128(const __grid_constant__ AttentionArguments p)
{
    grad_queries<128>(p, (float*)shared_memory);
}

// One block for each tile of keys, which are the rows here; queries are the columns.
template <int D>
__device__ __forceinline__ void grad_keys(const AttentionArguments& p, float* shared)
{
    float* turned_key = shared;
    float* turned_value = turned_key + D * PITCH;
    float* other = turned_value + D * PITCH;
    float* scores = other + D * PITCH;
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    i64 local_sample = (i64)blockIdx.x / p.key_heads;
    i64 sample = p.first_sample + local_sample;
    i64 key_head = (i64)blockIdx.x % p.key_heads;
    i64 group = p.query_heads / p.key_heads;
    int first_key = blockIdx.y * TILE;
    float key_sums[4][D / 16], value_sums[4][D / 16];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < D / 16; ++j) key_sums[i][j] = value_sums[i][j] = 0.0f;
    load_turned<D>(turned_key, p.key, base_of(p.key, sample, key_head), first_key, p.keys, p.width);
    load_turned<D>(turned_value, p.value, base_of(p.value, sample, key_head), first_key, p.keys, p.width);
    int begin = p.is_causal ? first_key : 0;
    for (i64 head = key_head * group; head < (key_head + 1) * group; ++head) {
        i64 query_base = base_of(p.query, sample, head), grad_base = base_of(p.grad, sample, head);
        i64 absolute_head = sample * p.query_heads + head;
        for (int first_query = begin; first_query < p.queries; first_query += TILE) {
            load_turned<D>(other, p.query, query_base, first_query, p.queries, p.width);
            __syncthreads();
            float s[4][4], g[4][4], kept[4][4];
            multiply<D>(turned_key, other, ty, tx, s);
            __syncthreads();
            load_turned<D>(other, p.grad, grad_base, first_query, p.queries, p.width);
            __syncthreads();
            multiply<D>(turned_value, other, ty, tx, g);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                int query = first_query + tx * 4 + j;
                int valid = min(query, p.queries - 1);
                float normal = log_sum_exp_of(p, sample, head, valid);
                float delta = ((const float*)p.delta)[(local_sample * p.query_heads + head) * p.queries + valid];
                float factors[4];
                keep_factors(p, absolute_head, query, first_key + ty * 4, factors);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    bool hidden = is_hidden(p, query, first_key + ty * 4 + i);
                    if (p.bias.array.address) s[i][j] += bias_of(p, sample, head, query, first_key + ty * 4 + i);
                    float probability = hidden ? 0.0f : expf(s[i][j] * p.scale - normal);
                    kept[i][j] = probability * factors[i];
                    s[i][j] = probability * (g[i][j] * factors[i] - delta) * p.scale;
                }
            }
            __syncthreads();
            keep_scores(scores, ty, tx, kept);
            load_plain<D>(other, p.grad, grad_base, first_query, p.queries, p.width);
            __syncthreads();
            accumulate<D>(scores, other, ty, tx, value_sums);
            __syncthreads();
            keep_scores(scores, ty, tx, s);
            load_plain<D>(other, p.query, query_base, first_query, p.queries, p.width);
            __syncthreads();
            accumulate<D>(scores, other, ty, tx, key_sums);
            __syncthreads();
        }
    }
    write_rows<D>(p.grad_key, base_of(p.grad_key, sample, key_head), first_key, p.keys, p.width, ty, tx, key_sums);
    write_rows<D>(p.grad_value, base_of(p.grad_value, sample, key_head), first_key, p.keys, p.width, ty, tx,
                  value_sums);
}

extern "C" __global__ void __launch_bounds__(256) attention_grad_keys64(const __grid_constant__ AttentionArguments p)
{
    grad_keys<64>(p, (float*)shared_memory);
}

extern "C" __global__ void __launch_bounds__(256) attention_grad_keys128(const __grid_constant__ AttentionArguments p)
{
    grad_keys<128>(p, (float*)shared_memory);
}
