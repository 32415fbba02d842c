// Tiles of float32 elements, and products of them on tensor cores.
//
// Each product is made of three in TF32, whose operands have 11 significant bits: with x = high + low, a b is
// about a_high b_high + a_high b_low + a_low b_high, exact to some 2^-20. The units cut what they do not use off an
// operand, so `high` is x itself.

#if __CUDA_ARCH__ >= 800

typedef float Stored;

// Sixteen rows as left operands for eight features each.
typedef float Rows[FEATURES / 8][4];

// Tiles of eight columns that one call multiplies where some of 64 columns are left out.
#define NARROW 4

// Tiles of eight columns that the gradients' passes work on at a time.
#define QUERY_STEP 2
#define KEY_STEP 1

// Tiles of keys and values, or of queries and gradients, that the gradients' passes hold: one is worked on while the
// next comes, where all cards have room for both.
#define BUFFERS (FEATURES > 64 ? 1 : 2)

// Blocks that a multiprocessor has registers for, of each kernel.
#define FORWARD_BLOCKS (FEATURES > 64 ? 2 : 3)
#define QUERY_BLOCKS (FEATURES > 64 ? 2 : FEATURES > 32 ? 3 : 4)
#define KEY_BLOCKS (FEATURES > 32 ? 2 : 3)

__device__ __forceinline__ float widened(Stored value) { return value; }

__device__ __forceinline__ Stored narrowed(float value) { return value; }

// Two neighbours whose place is a multiple of their length.
__device__ __forceinline__ float2 load_pair(const Stored* at) { return *(const float2*)at; }

__device__ __forceinline__ void store_pair(Stored* at, float first, float second)
{
    *(float2*)at = make_float2(first, second);
}

// Where an element of a tile is in shared memory: rows exchange groups of eight so that neither reading eight rows at
// one place nor reading every other row meets a bank twice.
__device__ __forceinline__ int place(int row, int feature)
{
    return row * FEATURES + (feature ^ ((((row & 3) ^ ((row >> 2) & 1))) << 3));
}

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

// Thread t of four contracts the features 2t and 2t + 1 of eight, which lie side by side in a tile.
__device__ __forceinline__ void read_rows(Rows& rows, const View4& view, i64 base, int first, int positions, int width)
{
    const Stored* source = (const Stored*)view.array.address + base;
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
    for (int k = 0; k < FEATURES / 8; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int position = first + 2 * g + (i & 1), feature = 8 * k + 2 * t + (i >> 1);
            bool inside = position < positions && feature < width;
            rows[k][i] = inside ? source[position * view.strides[2] + feature * view.strides[3]] : 0.0f;
        }
    }
}

// c[n] += rows · tileᵀ for N tiles of eight columns from `column` on.
template <int N>
__device__ __forceinline__ void multiply_turned(float c[N][4], const Rows& rows, const Stored* tile, int column)
{
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
    for (int k = 0; k < FEATURES / 8; ++k) {
        multiply<N>(c, rows[k], [&](int n, float* b) {
            float2 wide = *(const float2*)(tile + place(column + 8 * n + g, 8 * k + 2 * t));
            b[0] = wide.x;
            b[1] = wide.y;
        });
    }
}

// c += scores · tile for N groups of eight of the tile's rows from `row` on. The instruction's columns t and t + 4 stand
// for 2t and 2t + 1, the columns that a thread holds scores of.
template <int N>
__device__ __forceinline__ void multiply_plain(float c[FEATURES / 8][4], const float scores[N][4], const Stored* tile,
                                               int row)
{
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        float a[4] = { scores[k][0], scores[k][2], scores[k][1], scores[k][3] };
        multiply<FEATURES / 8>(c, a, [&](int n, float* b) {
            b[0] = tile[place(row + 8 * k + 2 * t, 8 * n + g)];
            b[1] = tile[place(row + 8 * k + 2 * t + 1, 8 * n + g)];
        });
    }
}

#endif
