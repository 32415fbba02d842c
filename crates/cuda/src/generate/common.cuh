// What all kernels, generated or written by hand, are compiled behind: element types and random numbers. Compiles with
// NVRTC, without any header, and as C++ for a host.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifdef ON_HOST

#include <cmath>
#include <cstring>
using namespace std;
#define DEVICE static inline
#define DEVICE_MEMBER inline
#define SHARED static
struct Index { i64 x, y; };
static Index blockIdx, gridDim;
static const Index threadIdx = {0, 0}, blockDim = {1, 1};
static inline void __syncthreads() {}
static inline u32 __umulhi(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }
static inline float bits_to_float(u32 bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline u32 float_to_bits(float value) { u32 bits; memcpy(&bits, &value, 4); return bits; }
static inline float rsqrt(float x) { return 1.0f / sqrt(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
#define KERNEL(name) static void name##_body(const Parameters& parameters)
#define KERNEL_OF(threads, name) KERNEL(name)
#define ENTRY(name)                                                                       \
    void name(const Parameters* parameters, i64 blocks, i64 splits)                       \
    {                                                                                     \
        gridDim = {blocks, splits};                                                       \
        for (blockIdx.y = 0; blockIdx.y < splits; ++blockIdx.y)                           \
            for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) name##_body(*parameters); \
    }

// `_Float16` rounds as the card does.
static inline float half_to_float(u16 bits) { _Float16 value; memcpy(&value, &bits, 2); return (float)value; }
static inline u16 float_to_half(float value) { _Float16 half = (_Float16)value; u16 bits; memcpy(&bits, &half, 2); return bits; }

#else

#define DEVICE __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define SHARED __shared__
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
DEVICE float bits_to_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 float_to_bits(float value) { return __float_as_uint(value); }
#define KERNEL(name) extern "C" __global__ void name(const __grid_constant__ Parameters parameters)
// With so many threads in a block: a compiler that does not know them may use more registers than they all can have.
#define KERNEL_OF(threads, name) extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Parameters parameters)
#define ENTRY(name)

DEVICE float half_to_float(u16 bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

DEVICE u16 float_to_half(float value)
{
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

#endif

// The bits of a word as a `double`, and back.
#ifdef ON_HOST
static inline double to_double(i64 word) { double value; memcpy(&value, &word, 8); return value; }
static inline i64 to_bits(double value) { i64 word; memcpy(&word, &value, 8); return word; }
#else
DEVICE double to_double(i64 word) { return __longlong_as_double(word); }
DEVICE i64 to_bits(double value) { return __double_as_longlong(value); }
#endif

DEVICE float brain_to_float(u16 bits) { return bits_to_float((u32)bits << 16); }

// Round to nearest, ties to even. By hand: the instruction exists from compute capability 8.0 only.
DEVICE u16 float_to_brain(float value)
{
    u32 bits = float_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)((bits >> 16) | 0x40u);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

struct Words { u32 at[4]; };

// Four random words for a counter under a key: Philox 4x32-10.
DEVICE Words philox(u64 counter, u64 key)
{
    u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = 0, c3 = 0;
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    Words words = {{c0, c1, c2, c3}};
    return words;
}
