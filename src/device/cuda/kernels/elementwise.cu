// out[i] = f(a[i], b[i]) over any strides, and faster where there are no gaps.

// Must agree with `Map` in elementwise.rs.
enum Function {
    COPY = 0,
    FILL = 1,
    SCALE = 2,
    SHIFT = 3,
    POWER = 4,
    POWER_GRAD = 5,
    ADD = 6,
    MUL = 7,
    ARANGE = 8,
    MASK_BIAS = 9,
    RELU = 10,
    GELU = 11,
    GELU_TANH = 12,
    TANH = 13,
    SILU = 14,
    SIGMOID = 15,
    RELU6 = 16,
    RSQRT = 17,
    COS = 18,
    SIN = 19,
    RELU_GRAD = 20,
    GELU_GRAD = 21,
    GELU_TANH_GRAD = 22,
    TANH_GRAD = 23,
    SILU_GRAD = 24,
    SIGMOID_GRAD = 25,
    RELU6_GRAD = 26,
    RSQRT_GRAD = 27,
    COS_GRAD = 28,
    SIN_GRAD = 29,
};

struct Operand {
    Array array;
    i64 strides[MAX_RANK];
};

struct MapArguments {
    Operand out;
    Operand a;
    Operand b;
    // The last one in groups.
    i64 shape[MAX_RANK];
    // How to divide by each, where there are fewer than 2^31 groups.
    u32 factors[MAX_RANK];
    u32 shifts[MAX_RANK];
    // Elements for `map1` and `map_integer`, groups along the last dimension for `map4` and `map8`.
    i64 count;
    int rank;
    int function;
    int operands;
    float number;
    int is_short;
    i64 whole_number;
};

__device__ __forceinline__ float power(float base, float exponent)
{
    if (exponent == 2.0f) return base * base;
    if (exponent == 3.0f) return base * base * base;
    if (exponent == 1.0f) return base;
    if (exponent == 0.5f) return sqrtf(base);
    return powf(base, exponent);
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Constants as PyTorch writes them: sqrt(2 / pi) and the cubic's factor.
#define GELU_SCALE 0.7978845608028654f
#define GELU_CUBIC 0.044715f

__device__ __forceinline__ float gelu_tanh_grad(float grad, float x)
{
    float square = x * x;
    float inner = GELU_SCALE * (x + GELU_CUBIC * square * x);
    float t = tanhf(inner);
    float left = 0.5f * (1.0f + t);
    float right = 0.5f * x * (1.0f - t * t) * GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * square);
    return grad * (left + right);
}

__device__ __forceinline__ float gelu_grad(float grad, float x)
{
    float cdf = 0.5f * (1.0f + erff(x * 0.7071067811865476f));
    float density = 0.3989422804014327f * expf(-0.5f * x * x);
    return grad * (cdf + x * density);
}

#define EACH(expression)                            \
    {                                               \
        _Pragma("unroll") for (int k = 0; k < V; ++k) \
        {                                           \
            float x = a[k], y = b[k];               \
            (void)x, (void)y;                       \
            r[k] = (expression);                    \
        }                                           \
        break;                                      \
    }

// Functions of a few instructions. Says whether the function was one of them.
template <int V>
__device__ __forceinline__ bool apply_light(int function, float number, const float* a, const float* b, float* r)
{
    switch (function) {
    case COPY: EACH(x)
    case FILL: EACH(number)
    case SCALE: EACH(x * number)
    case SHIFT: EACH(x + number)
    case ADD: EACH(x + y)
    case MUL: EACH(x * y)
    // A NaN stays one.
    case RELU: EACH(x < 0.0f ? 0.0f : x)
    case RELU6: EACH(x < 0.0f ? 0.0f : (x > 6.0f ? 6.0f : x))
    case RELU_GRAD: EACH(y <= 0.0f ? 0.0f : x)
    case RELU6_GRAD: EACH(y <= 0.0f || y >= 6.0f ? 0.0f : x)
    case TANH_GRAD: EACH(x * (1.0f - y * y))
    case SIGMOID_GRAD: EACH(x * (1.0f - y) * y)
    case RSQRT_GRAD: EACH(-0.5f * x * y * y * y)
    default: return false;
    }
    return true;
}

// Those with an exponential or the like in them; likewise.
template <int V>
__device__ __forceinline__ bool apply_medium(int function, float number, const float* a, const float* b, float* r)
{
    switch (function) {
    case GELU: EACH(x * 0.5f * (1.0f + erff(x * 0.7071067811865476f)))
    case GELU_TANH: EACH(0.5f * x * (1.0f + tanhf(GELU_SCALE * (x + GELU_CUBIC * x * x * x))))
    case TANH: EACH(tanhf(x))
    case SILU: EACH(x * sigmoid(x))
    case SIGMOID: EACH(sigmoid(x))
    case RSQRT: EACH(rsqrtf(x))
    case GELU_GRAD: EACH(gelu_grad(x, y))
    case GELU_TANH_GRAD: EACH(gelu_tanh_grad(x, y))
    case SILU_GRAD: EACH(x * sigmoid(y) * (1.0f + y * (1.0f - sigmoid(y))))
    // Powers that PyTorch multiplies out.
    case POWER: EACH(number == 2.0f ? x * x : x * x * x)
    case POWER_GRAD: EACH(x * (number * (number == 2.0f ? y : y * y)))
    default: return false;
    }
    return true;
}

// All of them, with what is slow on its own or needs to know where it is.
template <int V>
__device__ __forceinline__ void apply(int function, float number, i64 first, const float* a, const float* b, float* r)
{
    switch (function) {
    case POWER: EACH(power(x, number))
    case POWER_GRAD: EACH(number == 0.0f ? 0.0f : x * (number * power(y, number - 1.0f)))
    case ARANGE: EACH((float)(first + k))
    case MASK_BIAS: EACH(x != 0.0f ? 0.0f : -__int_as_float(0x7f800000))
    case COS: EACH(cosf(x))
    case SIN: EACH(sinf(x))
    case COS_GRAD: EACH(-x * sinf(y))
    case SIN_GRAD: EACH(x * cosf(y))
    default:
        if (!apply_light<V>(function, number, a, b, r)) apply_medium<V>(function, number, a, b, r);
    }
}

// `index / length` for an index below 2^31, by the length's factor and shift; leaves the remainder in `rest`.
__device__ __forceinline__ u32 divide_fast(u32 index, u32 length, u32 factor, u32 shift, u32& rest)
{
    u32 quotient = (__umulhi(index, factor) + index) >> shift;
    rest = index - quotient * length;
    return quotient;
}

// Where the operands' elements are for a group along the last dimension, of which `shape` counts the groups.
template <int V>
__device__ __forceinline__ void locate(const MapArguments& p, i64 group, i64& out, i64& a, i64& b)
{
    out = a = b = 0;
    i64 rest = group, scale = V;
    for (int d = p.rank - 1; d > 0; --d) {
        i64 i;
        if (p.is_short) {
            u32 at;
            rest = divide_fast((u32)rest, (u32)p.shape[d], p.factors[d], p.shifts[d], at);
            i = at;
        } else {
            rest = divide(rest, p.shape[d], i);
        }
        i *= scale;
        scale = 1;
        out += i * p.out.strides[d];
        a += i * p.a.strides[d];
        b += i * p.b.strides[d];
    }
    rest *= scale;
    out += rest * p.out.strides[0];
    a += rest * p.a.strides[0];
    b += rest * p.b.strides[0];
}

template <int V>
__device__ __forceinline__ void map(const MapArguments& p)
{
    int last = p.rank - 1;
    for (i64 group = thread_index(); group < p.count; group += thread_count()) {
        i64 out, at_a, at_b;
        locate<V>(p, group, out, at_a, at_b);
        float a[V], b[V], r[V];
#pragma unroll
        for (int k = 0; k < V; ++k) a[k] = b[k] = r[k] = 0.0f;
        if (p.operands > 0) load_group<V>(p.a.array, at_a, p.a.strides[last], a);
        if (p.operands > 1) load_group<V>(p.b.array, at_b, p.b.strides[last], b);
        apply<V>(p.function, p.number, group * V, a, b, r);
        store_group<V>(p.out.array, out, p.out.strides[last], r);
    }
}

extern "C" __global__ void map8(const __grid_constant__ MapArguments p) { map<8>(p); }

extern "C" __global__ void map4(const __grid_constant__ MapArguments p) { map<4>(p); }

extern "C" __global__ void map1(const __grid_constant__ MapArguments p) { map<1>(p); }

template <int V, bool MEDIUM>
__device__ __forceinline__ void apply_dense(const MapArguments& p, const float* a, const float* b, float* r)
{
    if (MEDIUM)
        apply_medium<V>(p.function, p.number, a, b, r);
    else
        apply_light<V>(p.function, p.number, a, b, r);
}

// Operands without gaps, from aligned starts; a grid that meets each group of four once, U groups a thread.
template <int U, bool MEDIUM>
__device__ __forceinline__ void map_dense(const MapArguments& p)
{
    i64 first = (i64)blockIdx.x * blockDim.x * U + threadIdx.x;
    float a[U][4], b[U][4], r[4];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        i64 group = first + u * blockDim.x;
        if (group >= p.count) continue;
        if (p.operands > 0) load_group<4>(p.a.array, group * 4, 1, a[u]);
        if (p.operands > 1) load_group<4>(p.b.array, group * 4, 1, b[u]);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
        i64 group = first + u * blockDim.x;
        if (group >= p.count) continue;
        apply_dense<4, MEDIUM>(p, a[u], b[u], r);
        store_group<4>(p.out.array, group * 4, 1, r);
    }
}

// The same where all are halves, in groups of eight. Words are converted behind all loads, so that those overlap.
template <int U, bool MEDIUM>
__device__ __forceinline__ void map_halves(const MapArguments& p)
{
    i64 first = (i64)blockIdx.x * blockDim.x * U + threadIdx.x;
    const uint4* from_a = (const uint4*)p.a.array.address;
    const uint4* from_b = (const uint4*)p.b.array.address;
    uint4 words_a[U], words_b[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        i64 group = first + u * blockDim.x;
        words_a[u] = words_b[u] = make_uint4(0, 0, 0, 0);
        if (group >= p.count) continue;
        if (p.operands > 0) words_a[u] = from_a[group];
        if (p.operands > 1) words_b[u] = from_b[group];
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
        i64 group = first + u * blockDim.x;
        if (group >= p.count) continue;
        float a[8], b[8], r[8];
        u32 words[4] = { words_a[u].x, words_a[u].y, words_a[u].z, words_a[u].w };
        from_halves(p.a.array.type, words, a);
        u32 others[4] = { words_b[u].x, words_b[u].y, words_b[u].z, words_b[u].w };
        from_halves(p.b.array.type, others, b);
        apply_dense<8, MEDIUM>(p, a, b, r);
        store_group<8>(p.out.array, group * 8, 1, r);
    }
}

extern "C" __global__ void __launch_bounds__(256) map_light4(const __grid_constant__ MapArguments p)
{
    map_dense<4, false>(p);
}

extern "C" __global__ void __launch_bounds__(256) map_light8(const __grid_constant__ MapArguments p)
{
    map_halves<2, false>(p);
}

extern "C" __global__ void __launch_bounds__(256) map_medium4(const __grid_constant__ MapArguments p)
{
    map_dense<2, true>(p);
}

extern "C" __global__ void __launch_bounds__(256) map_medium8(const __grid_constant__ MapArguments p)
{
    map_halves<2, true>(p);
}

// The same for integers, which float32 would round.
extern "C" __global__ void map_integer(const __grid_constant__ MapArguments p)
{
    for (i64 index = thread_index(); index < p.count; index += thread_count()) {
        i64 out, at_a, at_b;
        locate<1>(p, index, out, at_a, at_b);
        i64 a = p.operands > 0 ? load_integer(p.a.array, at_a) : 0;
        i64 b = p.operands > 1 ? load_integer(p.b.array, at_b) : 0;
        i64 r = a;
        switch (p.function) {
        case FILL: r = p.whole_number; break;
        case SCALE: r = a * p.whole_number; break;
        case SHIFT: r = a + p.whole_number; break;
        case ADD: r = a + b; break;
        case MUL: r = a * b; break;
        case ARANGE: r = index; break;
        }
        store_integer(p.out.array, out, r);
    }
}

// Must agree with `Random` in elementwise.rs.
enum Distribution { NORMAL = 0, UNIFORM = 1, BELOW = 2 };

struct RandomArguments {
    Array out;
    i64 count;
    u64 seed;
    // Largest magnitude of a uniform value.
    float bound;
    int distribution;
    // Past the largest integer.
    u64 limit;
};

extern "C" __global__ void random(const __grid_constant__ RandomArguments p)
{
    i64 groups = (p.count + 3) / 4;
    for (i64 group = thread_index(); group < groups; group += thread_count()) {
        uint4 words = philox((u64)group, p.seed);
        u32 word[4] = {words.x, words.y, words.z, words.w};
        float values[4];
        if (p.distribution == NORMAL) {
#pragma unroll
            for (int k = 0; k < 4; k += 2) {
                // Box and Muller's pair.
                float radius = sqrtf(-2.0f * logf(unit(word[k])));
                float angle = 6.283185307179586f * unit(word[k + 1]);
                values[k] = radius * cosf(angle);
                values[k + 1] = radius * sinf(angle);
            }
        } else {
#pragma unroll
            for (int k = 0; k < 4; ++k) values[k] = p.bound * (2.0f * unit(word[k]) - 1.0f);
        }
        if (p.distribution != BELOW && group * 4 + 4 <= p.count) {
            store_group<4>(p.out, group * 4, 1, values);
            continue;
        }
        for (int k = 0; k < 4 && group * 4 + k < p.count; ++k) {
            if (p.distribution == BELOW)
                store_integer(p.out, group * 4 + k, (i64)(((u64)word[k] * p.limit) >> 32));
            else
                store(p.out, group * 4 + k, values[k]);
        }
    }
}

struct DropoutArguments {
    Array x;
    Array y;
    u64 mask;
    i64 count;
    u64 seed;
    float p;
    float scale;
};

extern "C" __global__ void dropout(const __grid_constant__ DropoutArguments p)
{
    u8* mask = (u8*)p.mask;
    i64 groups = (p.count + 3) / 4;
    for (i64 group = thread_index(); group < groups; group += thread_count()) {
        uint4 words = philox((u64)group, p.seed);
        u32 word[4] = {words.x, words.y, words.z, words.w};
        if (group * 4 + 4 <= p.count) {
            float values[4];
            load_group<4>(p.x, group * 4, 1, values);
            u32 kept = 0;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                bool keep = unit(word[k]) >= p.p;
                values[k] = keep ? values[k] * p.scale : 0.0f;
                kept |= (u32)keep << (8 * k);
            }
            store_group<4>(p.y, group * 4, 1, values);
            *(u32*)(mask + group * 4) = kept;
            continue;
        }
        for (int k = 0; k < 4 && group * 4 + k < p.count; ++k) {
            bool keep = unit(word[k]) >= p.p;
            float x = load(p.x, group * 4 + k);
            store(p.y, group * 4 + k, keep ? x * p.scale : 0.0f);
            mask[group * 4 + k] = keep;
        }
    }
}

// `x` is the gradient of the result, `y` that of the operand.
extern "C" __global__ void dropout_grad(const __grid_constant__ DropoutArguments p)
{
    const u8* mask = (const u8*)p.mask;
    i64 groups = (p.count + 3) / 4;
    for (i64 group = thread_index(); group < groups; group += thread_count()) {
        if (group * 4 + 4 <= p.count) {
            float values[4];
            load_group<4>(p.x, group * 4, 1, values);
            u32 kept = *(const u32*)(mask + group * 4);
#pragma unroll
            for (int k = 0; k < 4; ++k) values[k] = (kept >> (8 * k)) & 0xff ? values[k] * p.scale : 0.0f;
            store_group<4>(p.y, group * 4, 1, values);
            continue;
        }
        for (int k = 0; k < 4 && group * 4 + k < p.count; ++k)
            store(p.y, group * 4 + k, mask[group * 4 + k] ? load(p.x, group * 4 + k) * p.scale : 0.0f);
    }
}
