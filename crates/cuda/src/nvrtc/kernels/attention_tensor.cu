// Scaled dot-product attention on tensor cores, after FlashAttention-2, for one element type and heads of up to FEATURES
// features. `attention_tensor_float.cu` or `attention_tensor_half.cu` comes before this text, with the products.
//
// A block has four warps and works on 64 rows (queries, or keys for their gradients), 16 a warp; columns come in
// tiles of 64. The rows 2g and 2g + 1 of a warp take the places g and g + 8 of the instruction, so that a thread
// holds scores of two neighbouring rows and two neighbouring columns, which share one draw of four random words.
// Rows contract features in the order in which tiles are read.

#if __CUDA_ARCH__ >= 800

#define BLOCK 128

// Elements that are copied at once.
#define GROUP (16 / (int)sizeof(Stored))

__device__ __forceinline__ bool is_aligned(const View4& view)
{
    return (view.array.address & 15) == 0 && view.strides[3] == 1
        && ((view.strides[0] | view.strides[1] | view.strides[2]) & (GROUP - 1)) == 0;
}

// Two neighbours of a view's last dimension, of which `count` are inside; what is outside is zero. Pairs begin at even
// places.
__device__ __forceinline__ float2 load_two(const View4& view, bool paired, i64 at, int count)
{
    const Stored* source = (const Stored*)view.array.address + at;
    if (paired && count > 1) return load_pair(source);
    float2 two = { 0.0f, 0.0f };
    if (count > 0) two.x = widened(source[0]);
    if (count > 1) two.y = widened(source[view.strides[3]]);
    return two;
}

__device__ __forceinline__ void store_two(const View4& view, bool paired, i64 at, int count, float first, float second)
{
    Stored* target = (Stored*)view.array.address + at;
    if (paired && count > 1) {
        store_pair(target, first, second);
        return;
    }
    if (count > 0) target[0] = narrowed(first);
    if (count > 1) target[view.strides[3]] = narrowed(second);
}

// Starts to copy 64 positions of a head to shared memory; what is outside becomes zero.
__device__ __forceinline__ void start_copy(Stored* tile, const View4& view, bool aligned, i64 base, int first,
                                           int positions, int width)
{
    const Stored* source = (const Stored*)view.array.address + base;
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE * FEATURES / GROUP; i += BLOCK) {
        int row = i / (FEATURES / GROUP), feature = i % (FEATURES / GROUP) * GROUP, position = first + row;
        Stored* target = tile + place(row, feature);
        int count = position < positions ? min(max(width - feature, 0), GROUP) : 0;
        i64 at = count > 0 ? position * view.strides[2] + feature * view.strides[3] : 0;
        if (aligned) {
            u32 to = (u32)__cvta_generic_to_shared(target), bytes = (u32)(count * sizeof(Stored));
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(source + at), "r"(bytes));
        } else {
            for (int k = 0; k < GROUP; ++k) target[k] = k < count ? source[at + k * view.strides[3]] : narrowed(0.0f);
        }
    }
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LEFT>
__device__ __forceinline__ void await_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ __forceinline__ void write_rows(const View4& view, i64 base, int first, int positions, int width,
                                           const float c[FEATURES / 8][4])
{
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    bool paired = is_paired(view, sizeof(Stored));
#pragma unroll
    for (int n = 0; n < FEATURES / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int position = first + 2 * g + half, feature = 8 * n + 2 * t;
            if (position < positions)
                store_two(view, paired, base + position * view.strides[2] + feature * view.strides[3],
                          width - feature, c[n][2 * half], c[n][2 * half + 1]);
        }
    }
}

// What the scores of two neighbouring queries and two neighbouring keys are multiplied by: zero or
// 1 / (1 - dropout); by query, then key.
__device__ __forceinline__ void keep_factors(const AttentionArguments& p, i64 head, int query, int key, float* factors)
{
    u64 counter = ((u64)head * (u64)((p.queries + 1) / 2) + (u64)(query >> 1)) * (u64)((p.keys + 1) / 2)
        + (u64)(key >> 1);
    Words words = philox(counter, p.seed);
    float scale = p.dropout < 1.0f ? 1.0f / (1.0f - p.dropout) : 0.0f;
    factors[0] = unit(words.at[0]) >= p.dropout ? scale : 0.0f;
    factors[1] = unit(words.at[1]) >= p.dropout ? scale : 0.0f;
    factors[2] = unit(words.at[2]) >= p.dropout ? scale : 0.0f;
    factors[3] = unit(words.at[3]) >= p.dropout ? scale : 0.0f;
}

// What is added to two neighbouring queries' and two neighbouring keys' scores before they are scaled; by query, then
// key. Hidden scores are the caller's to skip.
__device__ __forceinline__ void read_bias(const AttentionArguments& p, bool paired, i64 base, int query, int key,
                                          float* bias)
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        i64 at = base + min(query + half, p.queries - 1) * p.bias.strides[2] + key * p.bias.strides[3];
        float2 two = load_two(p.bias, paired, at, p.keys - key);
        bias[2 * half] = two.x * p.inverse_scale;
        bias[2 * half + 1] = two.y * p.inverse_scale;
    }
}

// Stores the gradients of what was added to such scores, from those of the scores before they are scaled.
__device__ __forceinline__ void write_grad_bias(const AttentionArguments& p, bool paired, i64 base, int query, int key,
                                                const float* grads)
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        i64 at = base + (query + half) * p.grad_bias.strides[2] + key * p.grad_bias.strides[3];
        if (query + half < p.queries)
            store_two(p.grad_bias, paired, at, p.keys - key, grads[2 * half] * p.inverse_scale,
                      grads[2 * half + 1] * p.inverse_scale);
    }
}

// Two to this power; what is below 2^-126 is zero.
__device__ __forceinline__ float power_of_two(float x)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// The sum over the four threads that share rows.
__device__ __forceinline__ float row_sum(float value)
{
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

#define LOG2_E 1.4426950408889634f

// Where a block works.
struct Spot {
    // The sample within this launch, and in all.
    i64 local_sample, sample;
    i64 head;
    // The block's first row, and the warp's.
    int first, row;

    __device__ __forceinline__ Spot(const AttentionArguments& p, i64 heads, bool last_first)
    {
        local_sample = (i64)blockIdx.x / heads;
        head = (i64)blockIdx.x % heads;
        sample = p.first_sample + local_sample;
        // With a causal mask the last queries have most to do, and the first keys: they begin.
        first = (int)(last_first ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * TILE;
        row = first + (threadIdx.x >> 5) * 16;
    }
};

extern __shared__ float4 shared_memory[];

extern "C" __global__ void __launch_bounds__(BLOCK, FORWARD_BLOCKS)
    NAMED(attention)(const __grid_constant__ AttentionArguments p)
{
    Stored* keys = (Stored*)shared_memory;
    Stored* values = keys + TILE * FEATURES;
    Spot spot(p, p.query_heads, true);
    int t = threadIdx.x & 3, query = spot.row + 2 * ((threadIdx.x & 31) >> 2);
    i64 key_head = spot.head / (p.query_heads / p.key_heads);
    i64 absolute_head = spot.sample * p.query_heads + spot.head;
    i64 key_base = base_of(p.key, spot.sample, key_head), value_base = base_of(p.value, spot.sample, key_head);
    i64 bias_base = base_of(p.bias, spot.sample, spot.head);
    bool key_aligned = is_aligned(p.key), value_aligned = is_aligned(p.value);
    bool bias_paired = is_paired(p.bias, sizeof(Stored));
    int last_key = p.is_causal ? min(p.keys, spot.first + TILE) : p.keys;
    // The keys that this warp's rows see.
    int seen = p.is_causal ? min(p.keys, spot.row + 16) : p.keys;
    if (spot.row >= p.queries) seen = 0;
    start_copy(keys, p.key, key_aligned, key_base, 0, p.keys, p.width);
    commit_copies();
    Rows rows;
    float sums[FEATURES / 8][4] = {};
    read_rows(rows, p.query, base_of(p.query, spot.sample, spot.head), spot.row, p.queries, p.width);
    float largest[2] = { -__int_as_float(0x7f800000), -__int_as_float(0x7f800000) }, total[2] = { 0.0f, 0.0f };
    float scale = p.scale * LOG2_E;
    for (int first_key = 0; first_key < last_key; first_key += TILE) {
        int columns = seen - first_key;
        float s[8][4] = {};
        if (p.bias.array.address) {
#pragma unroll
            for (int n = 0; n < 8; ++n)
                if (8 * n < columns) read_bias(p, bias_paired, bias_base, query, first_key + 8 * n + 2 * t, s[n]);
        }
        await_copies<0>();
        __syncthreads();
        start_copy(values, p.value, value_aligned, value_base, first_key, p.keys, p.width);
        commit_copies();
        if (columns >= TILE) {
            multiply_turned<8>(s, rows, keys, 0);
        } else {
#pragma unroll
            for (int n = 0; n < 8; n += NARROW)
                if (8 * n < columns) multiply_turned<NARROW>(s + n, rows, keys, 8 * n);
        }
        bool is_whole = first_key + TILE <= p.keys && !(p.is_causal && first_key + TILE > spot.row);
        if (!is_whole) {
#pragma unroll
            for (int n = 0; n < 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (is_hidden(p, min(query + (i >> 1), p.queries - 1), first_key + 8 * n + 2 * t + (i & 1)))
                        s[n][i] = -__int_as_float(0x7f800000);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = largest[half];
#pragma unroll
            for (int n = 0; n < 8; ++n) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            // A row with nothing to see yet keeps its zeros.
            float reference = most == -__int_as_float(0x7f800000) ? 0.0f : most;
            float shrink = power_of_two((largest[half] - reference) * scale);
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < 8; ++n) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) {
                    s[n][i] = power_of_two((s[n][i] - reference) * scale);
                    sum += s[n][i];
                }
            }
#pragma unroll
            for (int n = 0; n < FEATURES / 8; ++n) {
                sums[n][2 * half] *= shrink;
                sums[n][2 * half + 1] *= shrink;
            }
            total[half] = total[half] * shrink + row_sum(sum);
            largest[half] = most;
        }
        if (p.dropout > 0.0f) {
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                float factors[4];
                keep_factors(p, absolute_head, query, first_key + 8 * n + 2 * t, factors);
#pragma unroll
                for (int i = 0; i < 4; ++i) s[n][i] *= factors[i];
            }
        }
        await_copies<0>();
        __syncthreads();
        if (first_key + TILE < last_key)
            start_copy(keys, p.key, key_aligned, key_base, first_key + TILE, p.keys, p.width);
        commit_copies();
#pragma unroll
        for (int n = 0; n < 8; n += 2)
            if (8 * n < columns) multiply_plain<2>(sums, s + n, values, 8 * n);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float inverse = total[half] > 0.0f ? 1.0f / total[half] : 0.0f;
#pragma unroll
        for (int n = 0; n < FEATURES / 8; ++n) {
            sums[n][2 * half] *= inverse;
            sums[n][2 * half + 1] *= inverse;
        }
        if (t == 0 && query + half < p.queries && p.log_sum_exp)
            ((float*)p.log_sum_exp)[spot.sample * p.log_sum_exp_strides[0] + spot.head * p.log_sum_exp_strides[1]
                                    + (query + half) * p.log_sum_exp_strides[2]]
                = largest[half] * p.scale + logf(total[half]);
    }
    write_rows(p.out, base_of(p.out, spot.sample, spot.head), spot.row, p.queries, p.width, sums);
}

// The sum of grad * out over features, for the two rows of a thread.
__device__ __forceinline__ void sum_products(const AttentionArguments& p, const Spot& spot, int query, float* delta)
{
    i64 grad_base = base_of(p.grad, spot.sample, spot.head), out_base = base_of(p.out, spot.sample, spot.head);
    bool grad_paired = is_paired(p.grad, sizeof(Stored)), out_paired = is_paired(p.out, sizeof(Stored));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int valid = min(query + half, p.queries - 1);
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < FEATURES / 8; ++n) {
            int feature = 8 * n + 2 * (threadIdx.x & 3), count = p.width - feature;
            float2 grad = load_two(p.grad, grad_paired,
                                   grad_base + valid * p.grad.strides[2] + feature * p.grad.strides[3], count);
            float2 out = load_two(p.out, out_paired,
                                  out_base + valid * p.out.strides[2] + feature * p.out.strides[3], count);
            sum += grad.x * out.x + grad.y * out.y;
        }
        delta[half] = row_sum(sum);
    }
}

// Also writes the sums of products that the keys' gradients need, and the gradient of what was added to scores.
extern "C" __global__ void __launch_bounds__(BLOCK, QUERY_BLOCKS)
    NAMED(attention_grad_queries)(const __grid_constant__ AttentionArguments p)
{
    Stored* shared = (Stored*)shared_memory;
    Spot spot(p, p.query_heads, true);
    int t = threadIdx.x & 3, query = spot.row + 2 * ((threadIdx.x & 31) >> 2);
    i64 key_head = spot.head / (p.query_heads / p.key_heads);
    i64 absolute_head = spot.sample * p.query_heads + spot.head;
    i64 key_base = base_of(p.key, spot.sample, key_head), value_base = base_of(p.value, spot.sample, key_head);
    i64 bias_base = base_of(p.bias, spot.sample, spot.head);
    i64 grad_bias_base = base_of(p.grad_bias, spot.sample, spot.head);
    bool key_aligned = is_aligned(p.key), value_aligned = is_aligned(p.value);
    bool bias_paired = is_paired(p.bias, sizeof(Stored)), grad_bias_paired = is_paired(p.grad_bias, sizeof(Stored));
    // Every score that something was added to has a gradient of that, if it be zero.
    bool is_cut = p.is_causal && !p.grad_bias.array.address;
    int last_key = is_cut ? min(p.keys, spot.first + TILE) : p.keys;
    // The keys that this warp's rows see.
    int seen = is_cut ? min(p.keys, spot.row + 16) : p.keys;
    if (spot.row >= p.queries) seen = 0;
    auto start = [&](int first_key) {
        Stored* keys = shared + (first_key / TILE % BUFFERS) * 2 * TILE * FEATURES;
        start_copy(keys, p.key, key_aligned, key_base, first_key, p.keys, p.width);
        start_copy(keys + TILE * FEATURES, p.value, value_aligned, value_base, first_key, p.keys, p.width);
    };
    start(0);
    commit_copies();
    Rows rows, grads;
    float sums[FEATURES / 8][4] = {}, normal[2], delta[2];
    read_rows(rows, p.query, base_of(p.query, spot.sample, spot.head), spot.row, p.queries, p.width);
    read_rows(grads, p.grad, base_of(p.grad, spot.sample, spot.head), spot.row, p.queries, p.width);
    sum_products(p, spot, query, delta);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        normal[half] = log_sum_exp_of(p, spot.sample, spot.head, min(query + half, p.queries - 1)) * LOG2_E;
        if (t == 0 && query + half < p.queries)
            ((float*)p.delta)[(spot.local_sample * p.query_heads + spot.head) * p.queries + query + half]
                = delta[half];
    }
    float scale = p.scale * LOG2_E;
    for (int first_key = 0; first_key < last_key; first_key += TILE) {
        int next = first_key + (BUFFERS - 1) * TILE;
        if (BUFFERS == 1 ? next > 0 : next < last_key) start(next);
        commit_copies();
        await_copies<BUFFERS - 1>();
        __syncthreads();
        const Stored* keys = shared + (first_key / TILE % BUFFERS) * 2 * TILE * FEATURES;
        const Stored* values = keys + TILE * FEATURES;
        bool is_whole = first_key + TILE <= p.keys && !(p.is_causal && first_key + TILE > spot.row);
        int columns = min(seen - first_key, TILE);
#pragma unroll 1
        for (int column = 0; column < columns; column += 8 * QUERY_STEP) {
            float s[QUERY_STEP][4] = {}, g[QUERY_STEP][4] = {};
            int first = first_key + column + 2 * t;
            if (p.bias.array.address) {
#pragma unroll
                for (int n = 0; n < QUERY_STEP; ++n)
                    read_bias(p, bias_paired, bias_base, query, first + 8 * n, s[n]);
            }
            multiply_turned<QUERY_STEP>(g, grads, values, column);
            multiply_turned<QUERY_STEP>(s, rows, keys, column);
#pragma unroll
            for (int n = 0; n < QUERY_STEP; ++n) {
                int key = first + 8 * n;
                float factors[4] = { 1.0f, 1.0f, 1.0f, 1.0f };
                if (p.dropout > 0.0f) keep_factors(p, absolute_head, query, key, factors);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    bool hidden = !is_whole && is_hidden(p, query + (i >> 1), key + (i & 1));
                    float probability = hidden ? 0.0f : power_of_two(s[n][i] * scale - normal[i >> 1]);
                    s[n][i] = probability * (g[n][i] * factors[i] - delta[i >> 1]) * p.scale;
                }
                if (p.grad_bias.array.address)
                    write_grad_bias(p, grad_bias_paired, grad_bias_base, query, key, s[n]);
            }
            multiply_plain<QUERY_STEP>(sums, s, keys, column);
        }
        __syncthreads();
    }
    write_rows(p.grad_query, base_of(p.grad_query, spot.sample, spot.head), spot.row, p.queries, p.width, sums);
}

// Keys are the rows here, queries the columns.
extern "C" __global__ void __launch_bounds__(BLOCK, KEY_BLOCKS)
    NAMED(attention_grad_keys)(const __grid_constant__ AttentionArguments p)
{
    Stored* shared = (Stored*)shared_memory;
    // Of the queries of each buffer: logarithms of sums, and deltas.
    __shared__ float numbers[2][2][TILE];
    Spot spot(p, p.key_heads, false);
    int t = threadIdx.x & 3, key = spot.row + 2 * ((threadIdx.x & 31) >> 2);
    i64 group = p.query_heads / p.key_heads;
    bool query_aligned = is_aligned(p.query), grad_aligned = is_aligned(p.grad);
    bool bias_paired = is_paired(p.bias, sizeof(Stored));
    Rows rows, values;
    float key_sums[FEATURES / 8][4] = {}, value_sums[FEATURES / 8][4] = {};
    read_rows(rows, p.key, base_of(p.key, spot.sample, spot.head), spot.row, p.keys, p.width);
    read_rows(values, p.value, base_of(p.value, spot.sample, spot.head), spot.row, p.keys, p.width);
    int begin = p.is_causal ? spot.first : 0;
    // The queries that see this warp's rows.
    int from = p.is_causal ? spot.row : 0, to = spot.row < p.keys ? p.queries : 0;
    float scale = p.scale * LOG2_E;
    for (i64 head = spot.head * group; head < (spot.head + 1) * group; ++head) {
        i64 query_base = base_of(p.query, spot.sample, head), grad_base = base_of(p.grad, spot.sample, head);
        i64 bias_base = base_of(p.bias, spot.sample, head);
        i64 absolute_head = spot.sample * p.query_heads + head;
        auto start = [&](int first_query) {
            int buffer = first_query / TILE % BUFFERS;
            Stored* queries = shared + buffer * 2 * TILE * FEATURES;
            start_copy(queries, p.query, query_aligned, query_base, first_query, p.queries, p.width);
            start_copy(queries + TILE * FEATURES, p.grad, grad_aligned, grad_base, first_query, p.queries, p.width);
            int i = threadIdx.x % TILE, valid = min(first_query + i, p.queries - 1);
            if (threadIdx.x < TILE)
                numbers[buffer][0][i] = log_sum_exp_of(p, spot.sample, head, valid) * LOG2_E;
            else
                numbers[buffer][1][i]
                    = ((const float*)p.delta)[(spot.local_sample * p.query_heads + head) * p.queries + valid];
        };
        if (begin < p.queries) start(begin);
        commit_copies();
        for (int first_query = begin; first_query < p.queries; first_query += TILE) {
            int next = first_query + (BUFFERS - 1) * TILE;
            if (BUFFERS == 1 ? next > begin : next < p.queries) start(next);
            commit_copies();
            await_copies<BUFFERS - 1>();
            __syncthreads();
            int buffer = first_query / TILE % BUFFERS;
            const Stored* queries = shared + buffer * 2 * TILE * FEATURES;
            const Stored* grads = queries + TILE * FEATURES;
            bool is_whole = first_query + TILE <= p.queries && spot.row + 16 <= p.keys
                && !(p.is_causal && first_query < spot.row + 16);
            int columns = min(to - first_query, TILE);
#pragma unroll 1
            for (int column = max(from - first_query, 0); column < columns; column += 8 * KEY_STEP) {
                float s[KEY_STEP][4] = {}, g[KEY_STEP][4] = {}, kept[KEY_STEP][4];
                int first = first_query + column + 2 * t;
                if (p.bias.array.address) {
#pragma unroll
                    for (int n = 0; n < KEY_STEP; ++n) {
                        // By query, then key; scores here by key, then query.
                        float bias[4];
                        read_bias(p, bias_paired, bias_base, first + 8 * n, key, bias);
#pragma unroll
                        for (int i = 0; i < 4; ++i) s[n][i] = bias[(i & 1) * 2 + (i >> 1)];
                    }
                }
                multiply_turned<KEY_STEP>(g, values, grads, column);
                multiply_turned<KEY_STEP>(s, rows, queries, column);
#pragma unroll
                for (int n = 0; n < KEY_STEP; ++n) {
                    int query = first + 8 * n;
                    float factors[4] = { 1.0f, 1.0f, 1.0f, 1.0f };
                    if (p.dropout > 0.0f) keep_factors(p, absolute_head, query, key, factors);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        int local = column + 8 * n + 2 * t + (i & 1);
                        float factor = factors[(i & 1) * 2 + (i >> 1)];
                        bool hidden = !is_whole && is_hidden(p, query + (i & 1), key + (i >> 1));
                        float probability
                            = hidden ? 0.0f : power_of_two(s[n][i] * scale - numbers[buffer][0][local]);
                        kept[n][i] = probability * factor;
                        s[n][i] = probability * (g[n][i] * factor - numbers[buffer][1][local]) * p.scale;
                    }
                }
                multiply_plain<KEY_STEP>(value_sums, kept, grads, column);
                multiply_plain<KEY_STEP>(key_sums, s, queries, column);
            }
            __syncthreads();
        }
    }
    write_rows(p.grad_key, base_of(p.grad_key, spot.sample, spot.head), spot.row, p.keys, p.width, key_sums);
    write_rows(p.grad_value, base_of(p.grad_value, spot.sample, spot.head), spot.row, p.keys, p.width, value_sums);
}

#else

// Cards before Ampere have neither TF32 nor bfloat16; the host does not launch these there.
extern "C" __global__ void NAMED(attention)(const __grid_constant__ AttentionArguments) {}
extern "C" __global__ void NAMED(attention_grad_queries)(const __grid_constant__ AttentionArguments) {}
extern "C" __global__ void NAMED(attention_grad_keys)(const __grid_constant__ AttentionArguments) {}

#endif
