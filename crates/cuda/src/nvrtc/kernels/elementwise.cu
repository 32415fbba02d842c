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

struct Strided {
    Array array;
    i64 strides[MAX_RANK];
};

struct MapArguments {
    Strided out;
    Strided a;
    Strided b;
    // The last one in groups.
    i64 shape[MAX_RANK];
    // How to divide by each, where there are fewer than 2^31 groups.
    u32 factors[MAX_RANK];
    u32 shifts[MAX_RANK];
    // Elements for `map1`, groups along the last dimension for `map4` and `map8`.
    i64 count;
    int rank;
    int function;
    int operands;
    float number;
    int is_short;
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

#define ROOT_HALF 0.7071067811865476f
#define DENSITY 0.3989422804014327f

// The normal distribution's share below x.
__device__ __forceinline__ float normal_share(float x) { return 0.5f * (1.0f + erff(x * ROOT_HALF)); }

// The same for halves, whose last digit is a thousand times the error of the formula (Abramowitz and Stegun
// 7.1.26), given exp(-x * x / 2).
__device__ __forceinline__ float normal_share_coarse(float x, float decay)
{
    float t = __fdividef(1.0f, 1.0f + 0.3275911f * ROOT_HALF * fabsf(x));
    float tail = 0.5f * decay * t
        * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    return x < 0.0f ? tail : 1.0f - tail;
}

template <bool COARSE>
__device__ __forceinline__ float gelu(float x)
{
    return x * (COARSE ? normal_share_coarse(x, __expf(-0.5f * x * x)) : normal_share(x));
}

template <bool COARSE>
__device__ __forceinline__ float gelu_grad(float grad, float x)
{
    float decay = COARSE ? __expf(-0.5f * x * x) : expf(-0.5f * x * x);
    float share = COARSE ? normal_share_coarse(x, decay) : normal_share(x);
    return grad * (share + x * DENSITY * decay);
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

// Those with an exponential or the like in them; likewise. COARSE where the result is a half.
template <int V, bool COARSE>
__device__ __forceinline__ bool apply_medium(int function, float number, const float* a, const float* b, float* r)
{
    switch (function) {
    case GELU: EACH(gelu<COARSE>(x))
    case GELU_TANH: EACH(0.5f * x * (1.0f + tanhf(GELU_SCALE * (x + GELU_CUBIC * x * x * x))))
    case TANH: EACH(tanhf(x))
    case SILU: EACH(x * sigmoid(x))
    case SIGMOID: EACH(sigmoid(x))
    case RSQRT: EACH(rsqrtf(x))
    case GELU_GRAD: EACH(gelu_grad<COARSE>(x, y))
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
    case COS: EACH(cosf(x))
    case SIN: EACH(sinf(x))
    case COS_GRAD: EACH(-x * sinf(y))
    case SIN_GRAD: EACH(x * cosf(y))
    default:
        if (!apply_light<V>(function, number, a, b, r)) apply_medium<V, false>(function, number, a, b, r);
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

// Halves whose runs along the last dimension are whole, aligned groups of eight; the second operand may be one
// number a run. Two groups a thread, converted behind both loads.
extern "C" __global__ void __launch_bounds__(256) map_runs8(const __grid_constant__ MapArguments p)
{
    int last = p.rank - 1;
    bool is_number = p.operands > 1 && p.b.strides[last] == 0;
    i64 first = (i64)blockIdx.x * blockDim.x * 2 + threadIdx.x;
    i64 to[2];
    uint4 words_a[2], words_b[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
        i64 group = first + u * blockDim.x, at_a, at_b;
        words_a[u] = words_b[u] = make_uint4(0, 0, 0, 0);
        to[u] = -1;
        if (group >= p.count) continue;
        locate<8>(p, group, to[u], at_a, at_b);
        if (p.operands > 0) words_a[u] = *(const uint4*)(p.a.array.address + at_a * 2);
        if (is_number)
            words_b[u].x = *(const u16*)(p.b.array.address + at_b * 2);
        else if (p.operands > 1)
            words_b[u] = *(const uint4*)(p.b.array.address + at_b * 2);
    }
#pragma unroll
    for (int u = 0; u < 2; ++u) {
        if (to[u] < 0) continue;
        float a[8], b[8], r[8];
        u32 words[4] = { words_a[u].x, words_a[u].y, words_a[u].z, words_a[u].w };
        from_halves(p.a.array.dtype, words, a);
        u32 twice = words_b[u].x | (words_b[u].x << 16);
        u32 others[4] = { is_number ? twice : words_b[u].x, is_number ? twice : words_b[u].y,
                          is_number ? twice : words_b[u].z, is_number ? twice : words_b[u].w };
        from_halves(p.b.array.dtype, others, b);
        apply_light<8>(p.function, p.number, a, b, r);
        store_group<8>(p.out.array, to[u], 1, r);
    }
}

extern "C" __global__ void map4(const __grid_constant__ MapArguments p) { map<4>(p); }

extern "C" __global__ void map1(const __grid_constant__ MapArguments p) { map<1>(p); }

template <int V, bool MEDIUM>
__device__ __forceinline__ void apply_dense(const MapArguments& p, const float* a, const float* b, float* r)
{
    if (MEDIUM)
        apply_medium<V, V == 8>(p.function, p.number, a, b, r);
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
        from_halves(p.a.array.dtype, words, a);
        u32 others[4] = { words_b[u].x, words_b[u].y, words_b[u].z, words_b[u].w };
        from_halves(p.b.array.dtype, others, b);
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
