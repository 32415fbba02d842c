// What generated kernels are compiled behind, after `common.cuh`. Compiles as C++ for a host too, where each block has one
// thread (see `host` in mod.rs): formulas are checked there against PyTorch without a GPU.

// Elements as they lie in memory.
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

// The type in which an element is computed with.
template <typename E> struct Computed { typedef i64 Type; };
template <> struct Computed<float> { typedef float Type; };
template <> struct Computed<f16> { typedef float Type; };
template <> struct Computed<bf16> { typedef float Type; };
template <> struct Computed<double> { typedef double Type; };
template <> struct Computed<bool> { typedef bool Type; };

template <typename E> DEVICE typename Computed<E>::Type widened(E element) { return (typename Computed<E>::Type)element; }
DEVICE float widened(f16 element) { return half_to_float(element.bits); }
DEVICE float widened(bf16 element) { return brain_to_float(element.bits); }

template <typename E> struct Narrow {
    template <typename V> static DEVICE_MEMBER E from(V value) { return (E)value; }
};
template <> struct Narrow<bool> {
    template <typename V> static DEVICE_MEMBER bool from(V value) { return value != (V)0; }
};
template <> struct Narrow<f16> {
    template <typename V> static DEVICE_MEMBER f16 from(V value) { f16 half; half.bits = float_to_half((float)value); return half; }
};
template <> struct Narrow<bf16> {
    template <typename V> static DEVICE_MEMBER bf16 from(V value) { bf16 half; half.bits = float_to_brain((float)value); return half; }
};
// Of a negative fraction, what PyTorch stores as well: through a signed type.
template <> struct Narrow<u8> {
    template <typename V> static DEVICE_MEMBER u8 from(V value) { return (u8)(i64)value; }
};

// Elements that lie behind one another, loaded and stored together.
template <typename E, int V> struct alignas(sizeof(E) * V < 16 ? sizeof(E) * V : 16) Group { E at[V]; };

// Divides numbers below 2^31 by a length, by a factor and a shift.
DEVICE u32 quotient(u32 number, u64 divider)
{
    u32 factor = (u32)divider, shift = (u32)(divider >> 32);
    return (u32)(((u64)__umulhi(number, factor) + number) >> shift);
}

// An operand that is read and written by coordinates.
template <typename E, int R> struct Tensor {
    E* data;
    const i64* words;

    DEVICE_MEMBER i64 size(int d) const { return words[1 + d]; }
    DEVICE_MEMBER i64 stride(int d) const { return words[1 + R + d]; }
    DEVICE_MEMBER i64 count() const
    {
        i64 product = 1;
        for (int d = 0; d < R; ++d) product *= size(d);
        return product;
    }
    template <typename C> DEVICE_MEMBER I offset_at(const C* c) const
    {
        I offset = 0;
#pragma unroll
        for (int d = 0; d < R; ++d) offset += (I)c[d] * (I)stride(d);
        return offset;
    }
    DEVICE_MEMBER I offset_flat(i64 index) const
    {
        I offset = 0;
#pragma unroll
        for (int d = R - 1; d >= 0; --d) {
            I length = (I)size(d), rest = (I)index / length;
            offset += ((I)index - rest * length) * (I)stride(d);
            index = rest;
        }
        return offset;
    }
    template <typename C> DEVICE_MEMBER typename Computed<E>::Type at(const C* c) const { return widened(data[offset_at(c)]); }
    DEVICE_MEMBER typename Computed<E>::Type flat(i64 index) const { return widened(data[offset_flat(index)]); }
    template <typename... C> DEVICE_MEMBER typename Computed<E>::Type operator()(C... c) const
    {
        static_assert(sizeof...(C) == R, "as many coordinates as dimensions");
        const i64 all[sizeof...(C) + 1] = {(i64)c..., 0};
        return at(all);
    }
    template <typename V, typename C> DEVICE_MEMBER void set_at(V value, const C* c) const { data[offset_at(c)] = Narrow<E>::from(value); }
    template <typename V> DEVICE_MEMBER void set_flat(V value, i64 index) const { data[offset_flat(index)] = Narrow<E>::from(value); }
    template <typename V, typename... C> DEVICE_MEMBER void set(V value, C... c) const
    {
        static_assert(sizeof...(C) == R, "as many coordinates as dimensions");
        const i64 all[sizeof...(C) + 1] = {(i64)c..., 0};
        set_at(value, all);
    }
};

// An operand along a row: `R` dimensions with common lengths.
template <typename E, int R> struct Row {
    E* data;
    const i64* lengths;
    const i64* strides;

    DEVICE_MEMBER I offset(I j) const
    {
        if (R == 1) return j * (I)strides[0];
        I offset = 0;
#pragma unroll
        for (int d = R - 1; d >= 0; --d) {
            I length = (I)lengths[d], rest = j / length;
            offset += (j - rest * length) * (I)strides[d];
            j = rest;
        }
        return offset;
    }
    DEVICE_MEMBER typename Computed<E>::Type operator()(I j) const { return widened(data[offset(j)]); }
    template <typename V> DEVICE_MEMBER void set(V value, I j) const { data[offset(j)] = Narrow<E>::from(value); }
};

// How the elements of a row's operand lie in memory.
template <typename R> struct Element;
template <typename E, int R> struct Element<const Row<E, R>> { typedef E Type; };

// Functions that `<math.h>` lacks.

template <typename V> DEVICE bool is_nan(V value) { return value != value; }

// Unlike `fmax`, not a number where either is none.
template <typename V> DEVICE V maximum(V a, V b) { return (a > b || is_nan(a)) ? a : b; }
template <typename V> DEVICE V minimum(V a, V b) { return (a < b || is_nan(a)) ? a : b; }

template <typename V> DEVICE V square(V x) { return x * x; }
template <typename V> DEVICE V sigmoid(V x) { return (V)1 / ((V)1 + exp(-x)); }
template <typename V> DEVICE V sign_of(V x) { return (V)((x > (V)0) - (x < (V)0)); }

template <typename V> DEVICE V absolute(V x) { return x < (V)0 ? -x : x; }
DEVICE float absolute(float x) { return fabs(x); }
DEVICE double absolute(double x) { return fabs(x); }
DEVICE bool inverted(bool x) { return !x; }
DEVICE i64 inverted(i64 x) { return ~x; }

// Quotients of whole numbers, zero where there is none.
DEVICE i64 trunc_quotient(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? (i64)(0 - (u64)a) : a / b; }
DEVICE i64 floor_quotient(i64 a, i64 b)
{
    const i64 q = trunc_quotient(a, b);
    return b != 0 && q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}
DEVICE i64 floor_remainder(i64 a, i64 b) { return a - floor_quotient(a, b) * b; }

// `div_floor_floating` in c10/util/generic_math.h, and `remainder_kernel_cuda`.
template <typename V> DEVICE V floor_remainder(V a, V b)
{
    const V m = fmod(a, b);
    return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
template <typename V> DEVICE V floor_quotient(V a, V b)
{
    if (b == 0) return a / b;
    const V m = fmod(a, b);
    V q = (a - m) / b;
    if (m != 0 && (m < 0) != (b < 0)) q -= 1;
    if (q == 0) return copysign((V)0, a / b);
    const V whole = floor(q);
    return q - whole > (V)0.5 ? whole + 1 : whole;
}

DEVICE float power(float a, float b) { return pow(a, b); }
DEVICE double power(double a, double b) { return pow(a, b); }
// `powi` in Pow.h.
DEVICE i64 power(i64 a, i64 b)
{
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    u64 result = 1, factor = (u64)a;
    for (; b; b >>= 1, factor *= factor) result *= b & 1 ? factor : 1;
    return (i64)result;
}

DEVICE i64 common_divisor(i64 a, i64 b)
{
    a = absolute(a), b = absolute(b);
    while (a != 0) { const i64 rest = b % a; b = a; a = rest; }
    return b;
}
DEVICE i64 shifted_left(i64 a, i64 b) { return b < 0 || b > 63 ? 0 : (i64)((u64)a << b); }
DEVICE i64 shifted_right(i64 a, i64 b) { return a >> (b < 0 || b > 63 ? 63 : b); }

// The inverse of `erf`, improved by two steps of Newton's (`calc_erfinv` in Math.h).
template <typename V> DEVICE V inverse_erf(V y)
{
    const V size = fabs(y);
    if (!(size <= 1)) return (V)NAN;
    if (size == 1) return copysign((V)INFINITY, y);
    V x;
    if (size <= (V)0.7) {
        const V z = y * y;
        x = y * (((((V)-0.140543331 * z + (V)0.914624893) * z + (V)-1.645349621) * z + (V)0.886226899))
            / (((((V)0.012229801 * z + (V)-0.329097515) * z + (V)1.442710462) * z + (V)-2.118377725) * z + 1);
    } else {
        const V z = sqrt(-log((1 - size) / 2));
        x = copysign(((((V)1.641345311 * z + (V)3.429567803) * z + (V)-1.624906493) * z + (V)-1.970840454)
            / (((V)1.637067800 * z + (V)3.543889200) * z + 1), y);
    }
    for (int step = 0; step < 2; ++step) x -= (erf(x) - y) / ((V)1.1283791670955126 * exp(-x * x));
    return x;
}

// `calc_digamma` in Math.h.
template <typename V> DEVICE V digamma(V x)
{
    if (x == 0) return copysign((V)INFINITY, -x);
    V result = 0;
    if (x < 0) {
        if (x == trunc(x)) return (V)NAN;
        result = (V)-3.141592653589793 / tan((V)3.141592653589793 * (x - trunc(x)));
        x = 1 - x;
    }
    for (; x < 10; x += 1) result -= 1 / x;
    const V z = 1 / (x * x);
    const V tail = ((((((V)(1.0 / 12) * z - (V)(691.0 / 32760)) * z + (V)(1.0 / 132)) * z - (V)(1.0 / 240)) * z + (V)(1.0 / 252)) * z - (V)(1.0 / 120)) * z + (V)(1.0 / 12);
    return result + log(x) - (V)0.5 / x - z * tail;
}

// Hurwitz's zeta function by the formula of Euler and Maclaurin (`zeta` in Math.h).
template <typename V> DEVICE V zeta(V s, V q)
{
    if (s == 1) return (V)INFINITY;
    if (s < 1) return (V)NAN;
    if (q <= 0) {
        if (q == floor(q)) return (V)INFINITY;
        if (s != floor(s)) return (V)NAN;
    }
    const double terms[8] = {12, -720, 30240, -1209600, 47900160, -1.8924375803183791606e9, 7.47242496e10, -2.950130727918164224e12};
    V sum = 0, at = q;
    for (int n = 0; n < 9 || at <= 9; ++n, at += 1) sum += pow(at, -s);
    V power = pow(at, -s), factor = 1;
    sum += power * at / (s - 1) + power / 2;
    for (int n = 0; n < 8; ++n) {
        factor *= s + 2 * n;
        power /= at;
        sum += power * factor / (V)terms[n];
        factor *= s + 2 * n + 1;
        power /= at;
    }
    return sum;
}

// Derivatives of digamma (`polygamma` in Math.h).
template <typename V> DEVICE V polygamma(V n, V x)
{
    if (n == 0) return digamma(x);
    if (n == 1 && x < (V)0.5) {
        const V sine = sin((V)3.141592653589793 * x);
        return (V)9.869604401089358 / (sine * sine) - zeta((V)2, 1 - x);
    }
    return (fmod(n, (V)2) == 0 ? -1 : 1) * exp(lgamma(n + 1)) * zeta(n + 1, x);
}

// Modified Bessel functions of the first kind, times exp(-|x|): a series of powers, and Hankel's of 1 / x beyond.
DEVICE double scaled_bessel_i(int order, double x)
{
    const double size = fabs(x), z = size * size / 4;
    double sum = 1, term = 1;
    if (size < 20) {
        for (int k = 1; k < 100 && term > 1e-18 * sum; ++k) sum += term *= z / ((double)k * (k + order));
        sum *= exp(-size) * (order == 0 ? 1 : size / 2);
    } else {
        for (int k = 1; k < 30; ++k) sum += term *= ((2.0 * k - 1) * (2 * k - 1) - 4 * order) / (8 * k * size);
        sum /= sqrt(6.283185307179586 * size);
    }
    return order == 1 && x < 0 ? -sum : sum;
}
template <typename V> DEVICE V bessel_i0e(V x) { return (V)scaled_bessel_i(0, x); }
template <typename V> DEVICE V bessel_i1e(V x) { return (V)scaled_bessel_i(1, x); }

// Those of the second kind, times exp(x): an integral whose sum by trapezoids converges fast.
template <typename V> DEVICE V bessel_ke(V order, V x)
{
    if (!(x > 0)) return x == 0 ? (V)INFINITY : (V)NAN;
    const double step = 0.0625, size = (double)x;
    double sum = 0.5;
    for (int k = 1; k < 700; ++k) {
        const double t = step * k, less = size * (cosh(t) - 1);
        if (less > 45) break;
        sum += exp(-less) * cosh((double)order * t);
    }
    return (V)(sum * step);
}

// exp(x * x) * erfc(x): a continued fraction where `erfc` is small.
template <typename V> DEVICE V scaled_erfc(V x)
{
    const double at = (double)x;
    if (at < 4) return (V)(exp(at * at) * erfc(at));
    double rest = at;
    for (int k = 60; k > 0; --k) rest = at + 0.5 * k / rest;
    return (V)(0.5641895835477563 / rest);
}

// The logarithm of the normal distribution's share below x.
template <typename V> DEVICE V log_ndtr(V x)
{
    const V t = x * (V)0.7071067811865476;
    return x < -1 ? log(scaled_erfc(-t) / 2) - t * t : log1p(-erfc(t) / 2);
}

// Below which the normal distribution has this share: Abramowitz and Stegun 26.2.23, then Halley's method.
template <typename V> DEVICE V normal_quantile(V share)
{
    if (share == 0 || share == 1) return share == 0 ? (V)-INFINITY : (V)INFINITY;
    if (!(share > 0 && share < 1)) return (V)NAN;
    const double p = (double)share, tail = p < 0.5 ? p : 1 - p, t = sqrt(-2 * log(tail));
    double x = ((0.010328 * t + 0.802853) * t + 2.515517) / (((0.001308 * t + 0.189269) * t + 1.432788) * t + 1) - t;
    for (int step = 0; step < 3; ++step) {
        const double off = (0.5 * erfc(-x * 0.7071067811865476) - tail) * 2.5066282746310002 * exp(x * x / 2);
        x -= off / (1 + x * off / 2);
    }
    return (V)(p < 0.5 ? x : -x);
}

// Bessel functions J and Y of order zero and one: the recurrence of J from high orders down and Neumann's series, and
// Hankel's of 1 / x beyond. `kind` is 0 for J and 1 for Y.
DEVICE double bessel(int kind, int order, double x)
{
    const double size = fabs(x);
    const double sign = x < 0 && order == 1 ? -1 : 1;
    if (size >= 25) {
        double term = 1, sums[2] = {1, 0};
        for (int k = 1; k < 24; ++k) {
            term *= (4.0 * order - (2.0 * k - 1) * (2 * k - 1)) / (8 * k * size);
            sums[k & 1] += k & 2 ? -term : term;
        }
        const double angle = size - (2 * order + 1) * 0.7853981633974483;
        const double wave = kind == 0 ? cos(angle) * sums[0] - sin(angle) * sums[1] : sin(angle) * sums[0] + cos(angle) * sums[1];
        return sign * wave * sqrt(0.6366197723675814 / size);
    }
    if (size == 0) return kind == 1 ? (double)-INFINITY : order == 0 ? 1 : 0;
    // J of order k and k + 1 but for a common factor, which the sum of those of even orders tells.
    double high = 0, now = 1e-300, total = 0, series = 0, first = 0;
    for (int k = 60; k > 0; --k) {
        const double low = 2 * k / size * now - high;
        high = now, now = low;
        const int at = k - 1;
        if (at % 2 == 0) total += at == 0 ? now : 2 * now;
        if (at == 1) first = now;
        const double alternating = at / 2 % 2 == 0 ? 1 : -1;
        if (order == 0 && at % 2 == 0 && at > 0) series += alternating * 2 * now / at;
        if (order == 1 && at % 2 == 1 && at > 1) series += alternating * at * now / ((at / 2) * (at / 2 + 1.0));
        if (fabs(now) > 1e200) high *= 1e-200, now *= 1e-200, total *= 1e-200, series *= 1e-200, first *= 1e-200;
    }
    const double j0 = now / total, j1 = first / total;
    series /= total;
    if (kind == 0) return order == 0 ? j0 : sign * j1;
    const double turn = log(size / 2) + 0.5772156649015329;
    return order == 0 ? 0.6366197723675814 * (turn * j0 - 2 * series)
                      : 0.6366197723675814 * ((turn - 1) * j1 - j0 / size - series);
}
template <typename V> DEVICE V bessel_j0(V x) { return (V)bessel(0, 0, (double)x); }
template <typename V> DEVICE V bessel_j1(V x) { return (V)bessel(0, 1, (double)x); }
template <typename V> DEVICE V bessel_y0(V x) { return x < 0 ? (V)NAN : (V)bessel(1, 0, (double)x); }
template <typename V> DEVICE V bessel_y1(V x) { return x < 0 ? (V)NAN : (V)bessel(1, 1, (double)x); }

// Airy's function Ai: its series of powers, and the ones of 1 / x beyond.
template <typename V> DEVICE V airy_ai(V x)
{
    const double at = (double)x, size = fabs(at);
    if (size < 6) {
        double f = 1, g = at, a = 1, b = at;
        for (int k = 1; k < 60; ++k) {
            a *= at * at * at / ((3.0 * k - 1) * (3 * k)), b *= at * at * at / ((3.0 * k) * (3 * k + 1));
            f += a, g += b;
        }
        return (V)(0.355028053887817239 * f - 0.258819403792806798 * g);
    }
    const double angle = 2.0 / 3 * size * sqrt(size), front = 0.5641895835477563 / sqrt(sqrt(size));
    double term = 1, sums[2] = {1, 0}, decay = 1;
    for (int k = 1; k < 16; ++k) {
        term *= (6 * k - 5) * (6 * k - 3) * (6.0 * k - 1) / (216.0 * k * (2 * k - 1)) / angle;
        sums[k & 1] += k & 2 ? -term : term;
        decay += k & 1 ? -term : term;
    }
    if (at > 0) return (V)(0.5 * front * exp(-angle) * decay);
    const double turned = angle - 0.7853981633974483;
    return (V)(front * (cos(turned) * sums[0] + sin(turned) * sums[1]));
}

// An index that may count from the end, kept within the length: whatever memory holds, no access leaves the tensor.
DEVICE i64 wrapped(i64 index, i64 length)
{
    if (index < 0) index += length;
    return index < 0 ? 0 : index >= length ? length - 1 : index;
}

// A quotient, of whole numbers rounded down.
DEVICE float floor_if_whole(float a, float b) { return a / b; }
DEVICE double floor_if_whole(double a, double b) { return a / b; }
DEVICE i64 floor_if_whole(i64 a, i64 b) { const i64 q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }

// A number kept within a length.
DEVICE i64 between(i64 index, i64 length) { return index < 0 ? 0 : index >= length ? length - 1 : index; }
DEVICE i64 max_whole(i64 a, i64 b) { return a > b ? a : b; }

// An index that may count from the end, or a negative number where it is outside.
DEVICE i64 inside(i64 index, i64 length)
{
    if (index < 0) index += length;
    return index >= 0 && index < length ? index : -1;
}

// An index that is none: nothing is written there.
#define NOWHERE (-(1ll << 62))

// A whole number in the order in which values sort: what is no number comes last, and zeros are equal.
DEVICE i64 ordered(bool value) { return value; }
DEVICE i64 ordered(i64 value) { return value; }
DEVICE i64 ordered(float value)
{
    if (is_nan(value)) return 1ll << 62;
    const int bits = (int)float_to_bits(value == 0 ? 0.0f : value);
    return bits < 0 ? -(i64)(bits & 0x7fffffff) : bits;
}
DEVICE i64 ordered(double value)
{
    if (is_nan(value)) return 0x7fffffffffffffffll;
    const i64 bits = to_bits(value == 0 ? 0.0 : value);
    return bits < 0 ? -(bits & 0x7fffffffffffffffll) : bits;
}

// How a dimension is interpolated: `from` elements to `to`, `scale` of the former for each of the latter. Modes: 0 the
// nearest element below, 1 the nearest, 2 linear, 3 cubic; 4 and 5 the last two with filters as wide as the scale. As in
// `UpSample.cuh`.
template <typename A> struct Axis { i64 from, to; A scale; bool aligned; };

// `ratio` is the scale where the model's code says one, else zero.
template <int MODE, typename A> DEVICE Axis<A> axis_of(i64 from, i64 to, A ratio, bool aligned)
{
    Axis<A> axis = {from, to, 0, aligned && MODE > 1};
    if (axis.aligned) axis.scale = to > 1 ? (A)(from - 1) / (A)(to - 1) : (A)0;
    else axis.scale = ratio > 0 ? ratio : (A)from / (A)to;
    return axis;
}

// Where an element of the result lies in the operand.
template <int MODE, typename A> DEVICE A source_of(const Axis<A>& axis, i64 o)
{
    if (MODE == 0) return floor((A)o * axis.scale);
    if (MODE == 1) return floor(((A)o + (A)0.5) * axis.scale);
    if (MODE >= 4) return axis.scale * ((A)o + (A)0.5);
    if (axis.aligned) return axis.scale * (A)o;
    const A at = axis.scale * ((A)o + (A)0.5) - (A)0.5;
    return MODE == 2 && at < 0 ? (A)0 : at;
}

template <int MODE, typename A> DEVICE A filter_width(const Axis<A>& axis) { return (A)(MODE == 4 ? 1 : 2) * (axis.scale > 1 ? axis.scale : (A)1); }

template <int MODE, typename A> DEVICE i64 first_source(const Axis<A>& axis, i64 o)
{
    const A at = source_of<MODE>(axis, o);
    if (MODE >= 4) return max_whole((i64)(at - filter_width<MODE>(axis) + (A)0.5), 0);
    return between((i64)floor(at) - (MODE == 3 ? 1 : 0), axis.from);
}

template <int MODE, typename A> DEVICE i64 last_source(const Axis<A>& axis, i64 o)
{
    const A at = source_of<MODE>(axis, o);
    if (MODE >= 4) return between((i64)(at + filter_width<MODE>(axis) + (A)0.5) - 1, axis.from);
    return between((i64)floor(at) + (MODE == 2 ? 1 : MODE == 3 ? 2 : 0), axis.from);
}

// Results beyond these take nothing of an element: those within may.
template <int MODE, typename A> DEVICE i64 result_near(const Axis<A>& axis, A at, i64 more)
{
    if (axis.scale <= 0) return more < 0 ? 0 : axis.to - 1;
    const A o = (axis.aligned ? at : at + (A)0.5) / axis.scale;
    return between((o < -1e9 ? -1000000000 : o > 1e15 ? (i64)1e15 : (i64)o) + more, axis.to);
}
template <int MODE, typename A> DEVICE A reach(const Axis<A>& axis) { return MODE < 2 ? (A)1.5 : MODE == 2 ? (A)1 : MODE == 3 ? (A)3 : filter_width<MODE>(axis) + 1; }
template <int MODE, typename A> DEVICE i64 first_result(const Axis<A>& axis, i64 i) { return i == 0 ? 0 : result_near<MODE>(axis, (A)i - reach<MODE>(axis), -2); }
template <int MODE, typename A> DEVICE i64 last_result(const Axis<A>& axis, i64 i) { return i == axis.from - 1 ? axis.to - 1 : result_near<MODE>(axis, (A)i + reach<MODE>(axis), 2); }

template <int MODE, typename A> DEVICE A filtered(A x)
{
    if (x < 0) x = -x;
    if (MODE == 4) return x < 1 ? 1 - x : (A)0;
    const A a = (A)(MODE == 3 ? -0.75 : -0.5);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : (A)0;
}

// How much of element `i` is in element `o` of the result.
template <int MODE, typename A> DEVICE A mixed(const Axis<A>& axis, i64 o, i64 i)
{
    const A at = source_of<MODE>(axis, o);
    if (MODE < 2) return between((i64)at, axis.from) == i;
    if (MODE == 2) {
        const i64 low = between((i64)at, axis.from), high = low + (low < axis.from - 1);
        const A rest = at - (A)low;
        return (i == low ? 1 - rest : (A)0) + (i == high ? rest : (A)0);
    }
    if (MODE == 3) {
        const i64 low = (i64)floor(at);
        const A rest = at - (A)low;
        A sum = 0;
        for (int tap = -1; tap < 3; ++tap)
            if (between(low + tap, axis.from) == i) sum += filtered<3>(rest - (A)tap);
        return sum;
    }
    const i64 first = first_source<MODE>(axis, o), last = last_source<MODE>(axis, o);
    if (i < first || i > last) return 0;
    const A inverse = axis.scale >= 1 ? 1 / axis.scale : (A)1;
    A sum = 0;
    for (i64 j = first; j <= last; ++j) sum += filtered<MODE>(((A)j - at + (A)0.5) * inverse);
    const A own = filtered<MODE>(((A)i - at + (A)0.5) * inverse);
    return sum != 0 ? own / sum : own;
}

// Where a coordinate between -1 and 1 is among `size` elements, and how fast it goes there: `GridSampler.cuh`. Padding: 0
// zeros, 1 the border, 2 a reflection.
template <typename A> struct Looked { A at, factor; };

template <typename A> DEVICE Looked<A> kept_inside(Looked<A> place, i64 size, i64 padding, bool aligned)
{
    if (padding == 2) {
        const A low = aligned ? (A)0 : (A)-0.5, span = aligned ? (A)(size - 1) : (A)size;
        if (span <= 0) { place.at = 0; place.factor = 0; return place; }
        A at = place.at - low;
        if (at < 0) { at = -at; place.factor = -place.factor; }
        const A flips = floor(at / span), rest = at - flips * span;
        const bool is_odd = flips - 2 * floor(flips / 2) != 0;
        place.at = (is_odd ? span - rest : rest) + low;
        if (is_odd) place.factor = -place.factor;
    }
    if (padding != 0) {
        const A last = (A)(size - 1);
        if (!(place.at > 0)) { place.at = 0; place.factor = 0; }
        else if (place.at >= last) { place.at = last; place.factor = 0; }
    }
    return place;
}

template <int MODE, typename A> DEVICE Looked<A> looked(A coordinate, i64 size, i64 padding, bool aligned)
{
    Looked<A> place;
    place.at = aligned ? (coordinate + 1) / 2 * (A)(size - 1) : ((coordinate + 1) * (A)size - 1) / 2;
    place.factor = (A)(aligned ? size - 1 : size) / 2;
    if (MODE != 2) place = kept_inside(place, size, padding, aligned);
    if (!(place.at > (A)-2e9 && place.at < (A)2e9)) place.at = -100;
    return place;
}

// An element that is looked up: where, how much of it, and how that changes with the place.
template <typename A> struct Tap { i64 at; A weight, slope; };

template <int MODE, typename A> DEVICE Tap<A> tap_of(Looked<A> place, int number, i64 size, i64 padding, bool aligned)
{
    Tap<A> tap;
    const A low = floor(place.at), rest = place.at - low;
    if (MODE == 1) {
        tap.at = (i64)rint(place.at); tap.weight = 1; tap.slope = 0;
    } else if (MODE == 0) {
        tap.at = (i64)low + number; tap.weight = number ? rest : 1 - rest; tap.slope = number ? (A)1 : (A)-1;
    } else {
        const A a = (A)-0.75, x = rest - (A)(number - 1), far = x < 0 ? -x : x;
        tap.weight = filtered<3>(x);
        tap.slope = far < 1 ? ((a + 2) * 3 * far - 2 * (a + 3)) * far : ((3 * far - 10) * far + 8) * a;
        if (x < 0) tap.slope = -tap.slope;
        Looked<A> own = {low + (A)(number - 1), 1};
        tap.at = (i64)kept_inside(own, size, padding, aligned).at;
    }
    return tap;
}

// A random number in (0, 1) for each index under a key.
DEVICE float uniform(u64 seed, i64 index) { return ((float)(philox((u64)index, seed).at[0] >> 8) + 0.5f) * 5.9604644775390625e-8f; }

// A standard normal one.
DEVICE float normal(u64 seed, i64 index)
{
    Words words = philox((u64)index, seed);
    float u = ((float)(words.at[0] >> 8) + 0.5f) * 5.9604644775390625e-8f;
    float v = ((float)(words.at[1] >> 8) + 0.5f) * 5.9604644775390625e-8f;
    return sqrt(-2.0f * log(u)) * cos(6.283185307179586f * v);
}

// A whole one from `low` to below `high`.
DEVICE i64 whole_between(u64 seed, i64 index, i64 low, i64 high)
{
    Words words = philox((u64)index, seed);
    u64 range = (u64)(high > low ? high - low : 1);
    return low + (i64)((((u64)words.at[0] << 32) | words.at[1]) % range);
}

// A place below `count` for each one, all of them different: four rounds of a Feistel network over the even number of
// bits that holds them, again where it leads beyond.
DEVICE i64 shuffled(u64 seed, i64 index, i64 count)
{
    int half = 1;
    while (((i64)1 << (2 * half)) < count) ++half;
    const u64 mask = ((u64)1 << half) - 1;
    u64 at = (u64)index;
    do {
        u64 left = at >> half, right = at & mask;
        for (u64 round = 0; round < 4; ++round) {
            const u64 next = left ^ (philox(right | round << 60, seed).at[0] & mask);
            left = right, right = next;
        }
        at = left << half | right;
    } while (at >= (u64)count);
    return (i64)at;
}

// A count of events where this many are expected: one after the other, or by the normal distribution where they are many.
DEVICE float poisson(u64 seed, i64 index, float expected)
{
    if (!(expected > 0)) return 0;
    if (expected > 60) {
        const float count = rint(expected + sqrt(expected) * normal(seed, index));
        return count < 0 ? 0 : count;
    }
    float rest = uniform(seed, index), share = exp(-expected), count = 0;
    while (rest > share && count < 1000) { rest -= share; count += 1; share *= expected / count; }
    return count;
}

// What the threads of a row do together. LANES is how many there are: a warp, or a block of whole warps.
#ifdef ON_HOST
template <int LANES, typename V, typename C> static inline V combined(V value, C) { return value; }
#else
template <int LANES, typename V, typename C> DEVICE V combined(V value, C combine)
{
#pragma unroll
    for (int other = 16; other > 0; other >>= 1) value = combine(value, (V)__shfl_xor_sync(0xffffffffu, value, other));
    if (LANES > 32) {
        __shared__ V of_warp[32];
        __syncthreads();
        if ((threadIdx.x & 31) == 0) of_warp[threadIdx.x >> 5] = value;
        __syncthreads();
        value = of_warp[0];
        for (int warp = 1; warp < LANES / 32; ++warp) value = combine(value, of_warp[warp]);
    }
    return value;
}
#endif

// What the threads before this one in its row have, combined with `start`; a vote of a warp's threads; what one of them
// has; and a wait for what all of a row wrote.
#ifdef ON_HOST
template <int LANES, typename V, typename C> static inline V combined_before(V, V start, C) { return start; }
static inline u32 row_vote(bool truth) { return truth; }
template <typename V> static inline V row_from(V value, int) { return value; }
static inline int lowest_bit(u32 bits) { return __builtin_ctz(bits); }
template <int LANES> static inline void wait() {}
#else
template <int LANES, typename V, typename C> DEVICE V combined_before(V value, V start, C combine)
{
    const int place = threadIdx.x & 31;
    V sum = value;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
        const V other = (V)__shfl_up_sync(0xffffffffu, sum, step);
        if (place >= step) sum = combine(other, sum);
    }
    const V ahead = (V)__shfl_up_sync(0xffffffffu, sum, 1);
    if (LANES > 32) {
        __shared__ V of_warp[32];
        __syncthreads();
        if (place == 31) of_warp[threadIdx.x >> 5] = sum;
        __syncthreads();
        for (int warp = 0; warp < (int)(threadIdx.x >> 5); ++warp) start = combine(start, of_warp[warp]);
    }
    return place == 0 ? start : combine(start, ahead);
}
DEVICE u32 row_vote(bool truth) { return __ballot_sync(0xffffffffu, truth); }
template <typename V> DEVICE V row_from(V value, int lane) { return (V)__shfl_sync(0xffffffffu, value, lane); }
DEVICE int lowest_bit(u32 bits) { return __ffs((int)bits) - 1; }
template <int LANES> DEVICE void wait()
{
    if (LANES > 32) __syncthreads();
    else __syncwarp();
}
#endif
struct Adding { template <typename V> DEVICE_MEMBER V operator()(V a, V b) const { return a + b; } };
struct Multiplying { template <typename V> DEVICE_MEMBER V operator()(V a, V b) const { return a * b; } };
struct Largest { template <typename V> DEVICE_MEMBER V operator()(V a, V b) const { return maximum(a, b); } };
struct Smallest { template <typename V> DEVICE_MEMBER V operator()(V a, V b) const { return minimum(a, b); } };
// Until all threads of a row are here; what they wrote before is seen behind.
#ifdef ON_HOST
#define row_sync()
#else
#define row_sync() (LANES > 32 ? __syncthreads() : __syncwarp())
#endif
#define row_sum(value) combined<LANES>(value, Adding())
#define row_product(value) combined<LANES>(value, Multiplying())
#define row_max(value) combined<LANES>(value, Largest())
#define row_min(value) combined<LANES>(value, Smallest())
#ifdef ON_HOST
static const int WARP = 1;
template <typename V> static inline V warp_sum(V value) { return value; }
#define row_sync() ((void)0)
#else
static const int WARP = 32;
template <typename V> DEVICE V warp_sum(V value)
{
#pragma unroll
    for (int other = 16; other > 0; other >>= 1) value += __shfl_xor_sync(0xffffffffu, value, other);
    return value;
}
// A row of one warp shares its block with others.
#define row_sync() (LANES > 32 ? __syncthreads() : __syncwarp())
#endif
#define row_before(value, start) combined_before<LANES>(value, start, Adding())
#define row_wait() wait<LANES>()
#define for_each(j) for (I j = lane; j < n; j += LANES)
