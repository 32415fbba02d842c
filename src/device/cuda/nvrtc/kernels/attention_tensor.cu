// Scaled dot-product attention in float32 on tensor cores, after FlashAttention-2, for heads of up to 64 features.
//
// Each product is made of three in TF32, whose operands have 11 significant bits: with x = high + low, a b is
// about a_high b_high + a_high b_low + a_low b_high, exact to some 2^-20. The units cut what they do not use off an
// operand, so `high` is x itself.
//
// A block has four warps and works on 64 rows (queries, or keys for their gradients), 16 a warp; columns come in
// tiles of 64. The rows 2g and 2g + 1 of a warp take the places g and g + 8 of the instruction, so that a thread
// holds scores of two neighbouring rows and two neighbouring columns, which share one draw of four random words.
// Where scores are the left operand of a second product, the instruction's columns t and t + 4 stand for 2t and
// 2t + 1, the columns that a thread holds. Rows contract features in the same order.

#if __CUDA_ARCH__ >= 800

__device__ __forceinline__ float low_part(float x)
{
    return x - __uint_as_float(__float_as_uint(x) & 0xffffe000u);
}

__device__ __forceinline__ void mma(float c[4], const float a[4], float b0, float b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// c += a b for N tiles of eight columns; `at(n, b)` reads the right operand of one.
template <int N, typename Right>
__device__ __forceinline__ void multiply(float c[N][4], const float a[4], Right at)
{
    float a_low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) a_low[i] = low_part(a[i]);
#pragma unroll
    for (int n = 0; n < N; ++n) {
        float b[2];
        at(n, b);
        mma(c[n], a_low, b[0], b[1]);
        mma(c[n], a, low_part(b[0]), low_part(b[1]));
        mma(c[n], a, b[0], b[1]);
    }
}

// Where an element of a tile is in shared memory: rows are 64 long, and exchange groups of eight so that neither
// reading eight rows at one place nor reading every other row meets a bank twice.
__device__ __forceinline__ int place(int row, int column)
{
    return row * TILE + (column ^ ((((row & 3) ^ ((row >> 2) & 1))) << 3));
}

__device__ __forceinline__ bool is_aligned(const View4& view)
{
    return (view.array.address & 15) == 0 && view.strides[3] == 1
        && ((view.strides[0] | view.strides[1] | view.strides[2]) & 3) == 0;
}

// Starts to copy 64 positions of a head to shared memory; what is outside becomes zero.
__device__ __forceinline__ void start_copy(float* tile, const View4& view, bool aligned, i64 base, int first,
                                           int positions, int width)
{
    const float* source = (const float*)view.array.address + base;
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE * TILE / 4; i += 128) {
        int row = i >> 4, feature = (i & 15) * 4, position = first + row;
        float* target = tile + place(row, feature);
        int count = position < positions ? min(max(width - feature, 0), 4) : 0;
        i64 at = count > 0 ? position * view.strides[2] + feature * view.strides[3] : 0;
        if (aligned) {
            u32 to = (u32)__cvta_generic_to_shared(target);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(source + at), "r"(count * 4));
        } else {
            for (int k = 0; k < 4; ++k) target[k] = k < count ? source[at + k * view.strides[3]] : 0.0f;
        }
    }
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LEFT>
__device__ __forceinline__ void await_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Sixteen rows as left operands for eight features each.
__device__ __forceinline__ void read_rows(float a[8][4], const View4& view, i64 base, int first, int positions,
                                          int width)
{
    const float* source = (const float*)view.array.address + base;
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int position = first + 2 * g + (i & 1), feature = 8 * k + 2 * t + (i >> 1);
            bool inside = position < positions && feature < width;
            a[k][i] = inside ? source[position * view.strides[2] + feature * view.strides[3]] : 0.0f;
        }
    }
}

__device__ __forceinline__ void write_rows(const View4& view, i64 base, int first, int positions, int width,
                                           const float c[8][4])
{
    float* target = (float*)view.array.address + base;
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int position = first + 2 * g + (i >> 1), feature = 8 * n + 2 * t + (i & 1);
            if (position < positions && feature < width)
                target[position * view.strides[2] + feature * view.strides[3]] = c[n][i];
        }
    }
}

// c[n] += rows · tileᵀ for N tiles of eight columns from `column` on.
template <int N>
__device__ __forceinline__ void multiply_turned(float c[N][4], const float rows[8][4], const float* tile, int column)
{
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        multiply<N>(c, rows[k], [&](int n, float* b) {
            float2 wide = *(const float2*)(tile + place(column + 8 * n + g, 8 * k + 2 * t));
            b[0] = wide.x;
            b[1] = wide.y;
        });
    }
}

// c += scores · tile for eight of the tile's rows from `row` on.
__device__ __forceinline__ void multiply_plain(float c[8][4], const float scores[4], const float* tile, int row)
{
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    float a[4] = { scores[0], scores[2], scores[1], scores[3] };
    multiply<8>(c, a, [&](int n, float* b) {
        b[0] = tile[place(row + 2 * t, 8 * n + g)];
        b[1] = tile[place(row + 2 * t + 1, 8 * n + g)];
    });
}

// What the scores of two neighbouring queries and two neighbouring keys are multiplied by: zero or
// 1 / (1 - dropout); by query, then key.
__device__ __forceinline__ void keep_factors(const AttentionArguments& p, i64 head, int query, int key, float* factors)
{
    u64 counter = ((u64)head * (u64)((p.queries + 1) / 2) + (u64)(query >> 1)) * (u64)((p.keys + 1) / 2)
        + (u64)(key >> 1);
    uint4 words = philox(counter, p.seed);
    float scale = p.dropout < 1.0f ? 1.0f / (1.0f - p.dropout) : 0.0f;
    factors[0] = unit(words.x) >= p.dropout ? scale : 0.0f;
    factors[1] = unit(words.y) >= p.dropout ? scale : 0.0f;
    factors[2] = unit(words.z) >= p.dropout ? scale : 0.0f;
    factors[3] = unit(words.w) >= p.dropout ? scale : 0.0f;
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

extern "C" __global__ void __launch_bounds__(128, 3) attention_tensor(const __grid_constant__ AttentionArguments p)
{
    float* keys = (float*)shared_memory;
    float* values = keys + TILE * TILE;
    Spot spot(p, p.query_heads, true);
    int t = threadIdx.x & 3, query = spot.row + 2 * ((threadIdx.x & 31) >> 2);
    i64 key_head = spot.head / (p.query_heads / p.key_heads);
    i64 absolute_head = spot.sample * p.query_heads + spot.head;
    i64 key_base = base_of(p.key, spot.sample, key_head), value_base = base_of(p.value, spot.sample, key_head);
    bool key_aligned = is_aligned(p.key), value_aligned = is_aligned(p.value);
    int last_key = p.is_causal ? min(p.keys, spot.first + TILE) : p.keys;
    start_copy(keys, p.key, key_aligned, key_base, 0, p.keys, p.width);
    commit_copies();
    float rows[8][4], sums[8][4] = {};
    read_rows(rows, p.query, base_of(p.query, spot.sample, spot.head), spot.row, p.queries, p.width);
    float largest[2] = { -__int_as_float(0x7f800000), -__int_as_float(0x7f800000) }, total[2] = { 0.0f, 0.0f };
    float scale = p.scale * LOG2_E;
    for (int first_key = 0; first_key < last_key; first_key += TILE) {
        await_copies<0>();
        __syncthreads();
        start_copy(values, p.value, value_aligned, value_base, first_key, p.keys, p.width);
        commit_copies();
        float s[8][4] = {};
        multiply_turned<8>(s, rows, keys, 0);
        if (p.bias.array.address) {
#pragma unroll
            for (int n = 0; n < 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    s[n][i] += bias_of(p, spot.sample, spot.head, query + (i >> 1),
                                       first_key + 8 * n + 2 * t + (i & 1));
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
            float shrink = exp2f((largest[half] - reference) * scale);
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < 8; ++n) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) {
                    s[n][i] = exp2f((s[n][i] - reference) * scale);
                    sum += s[n][i];
                }
                sums[n][2 * half] *= shrink;
                sums[n][2 * half + 1] *= shrink;
            }
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            total[half] = total[half] * shrink + sum;
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
        for (int n = 0; n < 8; ++n) multiply_plain(sums, s[n], values, 8 * n);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float inverse = total[half] > 0.0f ? 1.0f / total[half] : 0.0f;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
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

extern "C" __global__ void __launch_bounds__(128, 3)
    attention_tensor_grad_queries(const __grid_constant__ AttentionArguments p)
{
    float* shared = (float*)shared_memory;
    Spot spot(p, p.query_heads, true);
    int t = threadIdx.x & 3, query = spot.row + 2 * ((threadIdx.x & 31) >> 2);
    i64 key_head = spot.head / (p.query_heads / p.key_heads);
    i64 absolute_head = spot.sample * p.query_heads + spot.head;
    i64 key_base = base_of(p.key, spot.sample, key_head), value_base = base_of(p.value, spot.sample, key_head);
    bool key_aligned = is_aligned(p.key), value_aligned = is_aligned(p.value);
    int last_key = p.is_causal ? min(p.keys, spot.first + TILE) : p.keys;
    auto start = [&](int first_key) {
        float* keys = shared + (first_key / TILE & 1) * 2 * TILE * TILE;
        start_copy(keys, p.key, key_aligned, key_base, first_key, p.keys, p.width);
        start_copy(keys + TILE * TILE, p.value, value_aligned, value_base, first_key, p.keys, p.width);
    };
    start(0);
    commit_copies();
    float rows[8][4], grads[8][4], sums[8][4] = {}, normal[2], delta[2];
    read_rows(rows, p.query, base_of(p.query, spot.sample, spot.head), spot.row, p.queries, p.width);
    read_rows(grads, p.grad, base_of(p.grad, spot.sample, spot.head), spot.row, p.queries, p.width);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int valid = min(query + half, p.queries - 1);
        normal[half] = log_sum_exp_of(p, spot.sample, spot.head, valid) * LOG2_E;
        delta[half]
            = ((const float*)p.delta)[(spot.local_sample * p.query_heads + spot.head) * p.queries + valid];
    }
    float scale = p.scale * LOG2_E;
    for (int first_key = 0; first_key < last_key; first_key += TILE) {
        if (first_key + TILE < last_key) start(first_key + TILE);
        commit_copies();
        await_copies<1>();
        __syncthreads();
        const float* keys = shared + (first_key / TILE & 1) * 2 * TILE * TILE;
        const float* values = keys + TILE * TILE;
#pragma unroll 1
        for (int column = 0; column < TILE; column += 16) {
            float s[2][4] = {}, g[2][4] = {};
            multiply_turned<2>(s, rows, keys, column);
            multiply_turned<2>(g, grads, values, column);
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                int key = first_key + column + 8 * n + 2 * t;
                float factors[4] = { 1.0f, 1.0f, 1.0f, 1.0f };
                if (p.dropout > 0.0f) keep_factors(p, absolute_head, query, key, factors);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    int at_query = query + (i >> 1), at_key = key + (i & 1);
                    bool hidden = is_hidden(p, at_query, at_key);
                    if (p.bias.array.address) s[n][i] += bias_of(p, spot.sample, spot.head, at_query, at_key);
                    float probability = hidden ? 0.0f : exp2f(s[n][i] * scale - normal[i >> 1]);
                    s[n][i] = probability * (g[n][i] * factors[i] - delta[i >> 1]) * p.scale;
                    if (p.grad_bias.array.address)
                        write_grad_bias(p, spot.sample, spot.head, at_query, at_key, s[n][i]);
                }
                multiply_plain(sums, s[n], keys, column + 8 * n);
            }
        }
        __syncthreads();
    }
    write_rows(p.grad_query, base_of(p.grad_query, spot.sample, spot.head), spot.row, p.queries, p.width, sums);
}

// Keys are the rows here, queries the columns.
extern "C" __global__ void __launch_bounds__(128, 2)
    attention_tensor_grad_keys(const __grid_constant__ AttentionArguments p)
{
    float* shared = (float*)shared_memory;
    // Of the queries of each buffer: logarithms of sums, and deltas.
    __shared__ float numbers[2][2][TILE];
    Spot spot(p, p.key_heads, false);
    int t = threadIdx.x & 3, key = spot.row + 2 * ((threadIdx.x & 31) >> 2);
    i64 group = p.query_heads / p.key_heads;
    bool query_aligned = is_aligned(p.query), grad_aligned = is_aligned(p.grad);
    float rows[8][4], values[8][4], key_sums[8][4] = {}, value_sums[8][4] = {};
    read_rows(rows, p.key, base_of(p.key, spot.sample, spot.head), spot.row, p.keys, p.width);
    read_rows(values, p.value, base_of(p.value, spot.sample, spot.head), spot.row, p.keys, p.width);
    int begin = p.is_causal ? spot.first : 0;
    float scale = p.scale * LOG2_E;
    for (i64 head = spot.head * group; head < (spot.head + 1) * group; ++head) {
        i64 query_base = base_of(p.query, spot.sample, head), grad_base = base_of(p.grad, spot.sample, head);
        i64 absolute_head = spot.sample * p.query_heads + head;
        auto start = [&](int first_query) {
            int buffer = first_query / TILE & 1;
            float* queries = shared + buffer * 2 * TILE * TILE;
            start_copy(queries, p.query, query_aligned, query_base, first_query, p.queries, p.width);
            start_copy(queries + TILE * TILE, p.grad, grad_aligned, grad_base, first_query, p.queries, p.width);
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
            if (first_query + TILE < p.queries) start(first_query + TILE);
            commit_copies();
            await_copies<1>();
            __syncthreads();
            int buffer = first_query / TILE & 1;
            const float* queries = shared + buffer * 2 * TILE * TILE;
            const float* grads = queries + TILE * TILE;
#pragma unroll 1
            for (int column = 0; column < TILE; column += 8) {
                float s[1][4] = {}, g[1][4] = {}, kept[4];
                multiply_turned<1>(s, rows, queries, column);
                multiply_turned<1>(g, values, grads, column);
                int query = first_query + column + 2 * t;
                // By query, then key; scores here by key, then query.
                float factors[4] = { 1.0f, 1.0f, 1.0f, 1.0f };
                if (p.dropout > 0.0f) keep_factors(p, absolute_head, query, key, factors);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    int local = column + 2 * t + (i & 1);
                    float factor = factors[(i & 1) * 2 + (i >> 1)];
                    bool hidden = is_hidden(p, query + (i & 1), key + (i >> 1));
                    if (p.bias.array.address)
                        s[0][i] += bias_of(p, spot.sample, head, query + (i & 1), key + (i >> 1));
                    float probability = hidden ? 0.0f : exp2f(s[0][i] * scale - numbers[buffer][0][local]);
                    kept[i] = probability * factor;
                    s[0][i] = probability * (g[0][i] * factor - numbers[buffer][1][local]) * p.scale;
                }
                multiply_plain(value_sums, kept, grads, column);
                multiply_plain(key_sums, s[0], queries, column);
            }
            __syncthreads();
        }
    }
    write_rows(p.grad_key, base_of(p.grad_key, spot.sample, spot.head), spot.row, p.keys, p.width, key_sums);
    write_rows(p.grad_value, base_of(p.grad_value, spot.sample, spot.head), spot.row, p.keys, p.width, value_sums);
}

extern "C" __global__ void attention_tensor_delta(const __grid_constant__ AttentionArguments p) { write_delta(p); }

#else

// Cards before Ampere have no TF32; the host does not launch these there.
extern "C" __global__ void attention_tensor(const __grid_constant__ AttentionArguments) {}
extern "C" __global__ void attention_tensor_delta(const __grid_constant__ AttentionArguments) {}
extern "C" __global__ void attention_tensor_grad_queries(const __grid_constant__ AttentionArguments) {}
extern "C" __global__ void attention_tensor_grad_keys(const __grid_constant__ AttentionArguments) {}

#endif
