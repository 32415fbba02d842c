// Common to all kernel files, which are compiled behind `common.cuh` and this text.
//
// Element types are run-time values: kernels load to float32, compute, and round once when they store.
// The branches on a type are uniform across a grid and cost little beside the memory traffic.

// Must agree with `Type` in layout.rs.
enum Type { F32 = 0, F16 = 1, BF16 = 2, I64 = 3, I32 = 4, U8 = 5, F64 = 6 };

// Must agree with `MAX_RANK` in layout.rs.
#define MAX_RANK 6

// The start of a tensor and the type of its elements.
struct Array {
    u64 address;
    int dtype;
    int unused;
};

// Two values as the halves of a word, the first one lower.
__device__ __forceinline__ u32 to_halves(int type, float first, float second)
{
    u32 word;
#if __CUDA_ARCH__ >= 800
    if (type == F16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
#else
    word = type == F16 ? (u32)float_to_half(first) | ((u32)float_to_half(second) << 16)
                       : (u32)float_to_brain(first) | ((u32)float_to_brain(second) << 16);
#endif
    return word;
}

__device__ __forceinline__ float load(const Array& array, i64 at)
{
    switch (array.dtype) {
    case F32: return ((const float*)array.address)[at];
    case F16: return half_to_float(((const u16*)array.address)[at]);
    case BF16: return brain_to_float(((const u16*)array.address)[at]);
    case I64: return (float)((const i64*)array.address)[at];
    case I32: return (float)((const int*)array.address)[at];
    case U8: return (float)((const u8*)array.address)[at];
    default: return (float)((const double*)array.address)[at];
    }
}

__device__ __forceinline__ void store(const Array& array, i64 at, float value)
{
    switch (array.dtype) {
    case F32: ((float*)array.address)[at] = value; break;
    case F16: ((u16*)array.address)[at] = float_to_half(value); break;
    case BF16: ((u16*)array.address)[at] = float_to_brain(value); break;
    case I64: ((i64*)array.address)[at] = (i64)value; break;
    case I32: ((int*)array.address)[at] = (int)value; break;
    case U8: ((u8*)array.address)[at] = (u8)value; break;
    default: ((double*)array.address)[at] = (double)value; break;
    }
}

// Rounds to what the type can hold.
__device__ __forceinline__ float rounded(int type, float value)
{
    switch (type) {
    case F16: return half_to_float(float_to_half(value));
    case BF16: return brain_to_float(float_to_brain(value));
    default: return value;
    }
}

__device__ __forceinline__ void store_integer(const Array& array, i64 at, i64 value)
{
    switch (array.dtype) {
    case I64: ((i64*)array.address)[at] = value; break;
    case I32: ((int*)array.address)[at] = (int)value; break;
    case U8: ((u8*)array.address)[at] = (u8)value; break;
    default: store(array, at, (float)value); break;
    }
}

// Eight halves from four words.
__device__ __forceinline__ void from_halves(int type, const u32* words, float* values)
{
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if (type == F16) {
            values[2 * k] = half_to_float((u16)words[k]);
            values[2 * k + 1] = half_to_float((u16)(words[k] >> 16));
        } else {
            values[2 * k] = __uint_as_float(words[k] << 16);
            values[2 * k + 1] = __uint_as_float(words[k] & 0xffff0000u);
        }
    }
}

// Loads V elements that are `step` apart; four neighbours in one wide load, eight halves too.
template <int V>
__device__ __forceinline__ void load_group(const Array& array, i64 at, i64 step, float* values)
{
    if (V == 8 && step == 1 && (array.dtype == F16 || array.dtype == BF16) && ((array.address + at * 2) & 15) == 0) {
        uint4 wide = *(const uint4*)(array.address + at * 2);
        u32 words[4] = { wide.x, wide.y, wide.z, wide.w };
        from_halves(array.dtype, words, values);
        return;
    }
    if (V > 4) {
        load_group<4>(array, at, step, values);
        load_group<(V > 4 ? V - 4 : 1)>(array, at + 4 * step, step, values + 4);
        return;
    }
    if (V == 4 && step == 1) {
        if (array.dtype == F32 && ((array.address + at * 4) & 15) == 0) {
            float4 wide = *(const float4*)(array.address + at * 4);
            values[0] = wide.x;
            values[1] = wide.y;
            values[2] = wide.z;
            values[3] = wide.w;
            return;
        }
        if ((array.dtype == F16 || array.dtype == BF16) && ((array.address + at * 2) & 7) == 0) {
            uint2 wide = *(const uint2*)(array.address + at * 2);
            if (array.dtype == F16) {
                values[0] = half_to_float((u16)wide.x);
                values[1] = half_to_float((u16)(wide.x >> 16));
                values[2] = half_to_float((u16)wide.y);
                values[3] = half_to_float((u16)(wide.y >> 16));
            } else {
                values[0] = __uint_as_float(wide.x << 16);
                values[1] = __uint_as_float(wide.x & 0xffff0000u);
                values[2] = __uint_as_float(wide.y << 16);
                values[3] = __uint_as_float(wide.y & 0xffff0000u);
            }
            return;
        }
    }
    if (V > 1 && step == 0) {
        float value = load(array, at);
#pragma unroll
        for (int k = 0; k < V; ++k) values[k] = value;
        return;
    }
#pragma unroll
    for (int k = 0; k < V; ++k) values[k] = load(array, at + k * step);
}

// Stores V elements, `step` apart.
template <int V>
__device__ __forceinline__ void store_group(const Array& array, i64 at, i64 step, const float* values)
{
    if (V == 8 && step == 1 && (array.dtype == F16 || array.dtype == BF16) && ((array.address + at * 2) & 15) == 0) {
        u32 words[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) words[k] = to_halves(array.dtype, values[2 * k], values[2 * k + 1]);
        *(uint4*)(array.address + at * 2) = make_uint4(words[0], words[1], words[2], words[3]);
        return;
    }
    if (V > 4) {
        store_group<4>(array, at, step, values);
        store_group<(V > 4 ? V - 4 : 1)>(array, at + 4 * step, step, values + 4);
        return;
    }
    if (V == 4 && step == 1) {
        if (array.dtype == F32 && ((array.address + at * 4) & 15) == 0) {
            *(float4*)(array.address + at * 4) = make_float4(values[0], values[1], values[2], values[3]);
            return;
        }
        if ((array.dtype == F16 || array.dtype == BF16) && ((array.address + at * 2) & 7) == 0) {
            uint2 wide;
            wide.x = to_halves(array.dtype, values[0], values[1]);
            wide.y = to_halves(array.dtype, values[2], values[3]);
            *(uint2*)(array.address + at * 2) = wide;
            return;
        }
    }
#pragma unroll
    for (int k = 0; k < V; ++k) store(array, at + k * step, values[k]);
}

// `index / length`, leaving the remainder in `rest`. Most indices have 32 bits, where a division costs a
// fifth of what it costs with 64.
__device__ __forceinline__ i64 divide(i64 index, i64 length, i64& rest)
{
    if ((((u64)index | (u64)length) >> 32) == 0) {
        u32 quotient = (u32)index / (u32)length;
        rest = (i64)((u32)index - quotient * (u32)length);
        return (i64)quotient;
    }
    i64 quotient = (i64)((u64)index / (u64)length);
    rest = index - quotient * length;
    return quotient;
}

__device__ __forceinline__ i64 thread_index() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }

__device__ __forceinline__ i64 thread_count() { return (i64)gridDim.x * blockDim.x; }

__device__ __forceinline__ float warp_sum(float value)
{
#pragma unroll
    for (int other = 16; other > 0; other >>= 1) value += __shfl_xor_sync(0xffffffffu, value, other);
    return value;
}

__device__ __forceinline__ float warp_max(float value)
{
#pragma unroll
    for (int other = 16; other > 0; other >>= 1)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, other));
    return value;
}

// The sum over a block of whole warps, at most 1024 threads; valid in the first thread.
__device__ __forceinline__ float block_sum(float value)
{
    __shared__ float of_warp[32];
    int lane = threadIdx.x & 31;
    int warp = threadIdx.x >> 5;
    value = warp_sum(value);
    __syncthreads();
    if (lane == 0) of_warp[warp] = value;
    __syncthreads();
    int warps = (blockDim.x + 31) >> 5;
    value = (int)threadIdx.x < warps ? of_warp[threadIdx.x] : 0.0f;
    if (warp == 0) value = warp_sum(value);
    return value;
}

// A random word as a number in (0, 1).
__device__ __forceinline__ float unit(u32 word) { return ((float)(word >> 8) + 0.5f) * 5.9604644775390625e-8f; }
