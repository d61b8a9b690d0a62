// Products and attention of a transformer's layers in fp32, for x86 processors with AVX2 or AVX-512.
//
// Compiled on first use, by native.py, with the instructions of the processor. A tile of the result is held in registers
// while the inner dimension is summed up. Weights are packed before, a panel of NR outputs after the other, so that
// they are read in order; a panel stays in the first cache while it meets the rows of a block, which stay in the second.

#include <cmath>
#include <cstdint>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr long LANES = 16, TILE_ROWS = 12;  // 24 of 32 registers hold sums
#else
constexpr long LANES = 8, TILE_ROWS = 6;  // 12 of 16
#endif
constexpr long NR = 2 * LANES;
constexpr long BLOCK_ROWS = 264;  // 400 kB at 384 inner numbers; whole tiles of either size
constexpr long BLOCK_INNER = 384;  // a panel of that has 24 kB, and 48 kB with AVX-512

typedef float Vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

inline Vec load(const float* from) { return *reinterpret_cast<const Vec*>(from); }
inline void store(float* to, Vec values) { *reinterpret_cast<Vec*>(to) = values; }
inline Vec all(float value) { return value - Vec{}; }
inline Vec smaller(Vec a, Vec b) { return a < b ? a : b; }
inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

// A quotient of polynomials, right to 3e-7 of 1 everywhere: beyond 4, erf is 1 in fp32.
inline Vec erf(Vec x) {
  x = smaller(larger(x, all(-4)), all(4));
  const Vec s = x * x;
  Vec above = all(-2.72614225801306e-10f);
  above = above * s + 2.77068142495902e-08f;
  above = above * s - 2.10102402082508e-06f;
  above = above * s - 5.69250639462346e-05f;
  above = above * s - 7.34990630326855e-04f;
  above = above * s - 2.95459980854025e-03f;
  above = above * s - 1.60960333262415e-02f;
  Vec below = all(-1.45660718464996e-05f);
  below = below * s - 2.13374055278905e-04f;
  below = below * s - 1.68282697438203e-03f;
  below = below * s - 7.37332916720468e-03f;
  below = below * s - 1.42647390514189e-02f;
  return x * above / below;
}

inline Vec gelu(Vec x) { return 0.5f * x * (1 + erf(x * 0.70710678118654752f)); }

// Of numbers that are not above 0: 2 to a whole power, which is put into the exponent, times a polynomial.
inline Vec exp(Vec x) {
  x = larger(x, all(-87));
  const Vec shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: leaves the nearest whole number
  const Vec whole = shifted - 12582912.0f;
  const Vec rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Vec sum = all(1.9875691500e-4f);
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * rest * rest + rest + 1;
  const Ints power = (reinterpret_cast<Ints>(shifted) << 23) + (127 << 23);
  return sum * reinterpret_cast<Vec>(power);
}

// R rows of `a` times a packed panel `b` of NR columns, added to `sums`.
template <int R>
inline void multiply(const float* a, long a_step, const float* b, long inner, Vec (&sums)[R][2]) {
  for (long k = 0; k < inner; k++, b += NR) {
    const Vec left = load(b), right = load(b + LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const float factor = a[r * a_step + k];
      sums[r][0] += factor * left;
      sums[r][1] += factor * right;
    }
  }
}

// Calls `work` with a number of rows that the compiler knows, so that their sums stay in registers.
template <int R, typename Work>
inline void call_with(long rows, Work work) {
  if constexpr (R > 0) {
    if (rows == R)
      work.template operator()<R>();
    else
      call_with<R - 1>(rows, work);
  }
}

struct Product {
  const float *inputs, *weights, *bias, *residual;
  float* outputs;
  long inner, outer, applies_gelu;
};

template <int R>
void tile_of_product(const Product& p, long row, long first, long count, long column) {
  Vec sums[R][2];
  float* target = p.outputs + row * p.outer + column;
  for (int r = 0; r < R; r++)
    for (int half = 0; half < 2; half++) {
      const long place = column + half * LANES;
      Vec start = first ? load(target + r * p.outer + half * LANES) : load(p.bias + place);
      if (!first && p.residual) start += load(p.residual + (row + r) * p.outer + place);
      sums[r][half] = start;
    }
  multiply<R>(p.inputs + row * p.inner + first, p.inner, p.weights + column * p.inner + first * NR, count, sums);
  const bool ends = p.applies_gelu && first + count == p.inner;
  for (int r = 0; r < R; r++)
    for (int half = 0; half < 2; half++)
      store(target + r * p.outer + half * LANES, ends ? gelu(sums[r][half]) : sums[r][half]);
}

inline long least(long a, long b) { return a < b ? a : b; }

// Keys of one head, scaled and turned, in panels of NR keys: dimension by dimension. What is beyond the last key is 0.
void pack_keys(const float* keys, long step, long length, long dim, float scale, float* packed) {
  for (long key = 0; key < length; key += NR)
    for (long d = 0; d < dim; d++)
      for (long lane = 0; lane < NR; lane++)
        *packed++ = key + lane < length ? keys[(key + lane) * step + d] * scale : 0;
}

// Values of one head in panels of NR dimensions: key by key.
void pack_values(const float* values, long step, long length, long dim, float* packed) {
  for (long d = 0; d < dim; d += NR)
    for (long key = 0; key < length; key++, packed += NR) {
      store(packed, load(values + key * step + d));
      store(packed + LANES, load(values + key * step + d + LANES));
    }
}

// The numbers of a row become exp(number - largest); gives their sum. What is beyond `length` adds nothing.
float exponentials(float* row, long length, long padded) {
  for (long k = length; k < padded; k++) row[k] = -INFINITY;
  Vec most = load(row);
  for (long k = LANES; k < padded; k += LANES) most = larger(most, load(row + k));
  float largest = most[0];
  for (long lane = 1; lane < LANES; lane++) largest = largest < most[lane] ? most[lane] : largest;
  Vec sums = {};
  for (long k = 0; k < padded; k += LANES) {
    const Vec value = exp(load(row + k) - largest);
    store(row + k, value);
    sums += value;
  }
  float sum = 0;
  for (long lane = 0; lane < LANES; lane++) sum += sums[lane];
  return sum;
}

struct Head {
  const float *queries, *keys, *values;  // keys and values are packed
  float *scores, *outputs;
  long step, size, length, padded, dim;
};

template <int R>
void attend_queries(const Head& head, long first) {
  for (long key = 0; key < head.length; key += NR) {
    Vec sums[R][2] = {};
    multiply<R>(head.queries + first * head.step, head.step, head.keys + key * head.dim, head.dim, sums);
    for (int r = 0; r < R; r++)
      for (int half = 0; half < 2; half++) store(head.scores + r * head.padded + key + half * LANES, sums[r][half]);
  }
  float share[R];
  for (int r = 0; r < R; r++) share[r] = 1 / exponentials(head.scores + r * head.padded, head.length, head.padded);
  for (long d = 0; d < head.dim; d += NR) {
    Vec sums[R][2] = {};
    multiply<R>(head.scores, head.padded, head.values + d * head.length, head.length, sums);
    for (int r = 0; r < R; r++)
      for (int half = 0; half < 2; half++)
        store(head.outputs + (first + r) * head.size + d + half * LANES, sums[r][half] * share[r]);
  }
}

}  // namespace

extern "C" {

// How many outputs a panel of weights has; their number must be a multiple, and that of a head's dimensions.
long panel_outputs() { return NR; }

// outputs[rows][outer] = inputs[rows][inner] * weights + bias, + residual[rows][outer] unless that is null, and GELU of
// that if it is asked for. weights[outer / NR][inner][NR].
void multiply_rows(const float* inputs, long rows, long inner, const float* weights, const float* bias,
                   const float* residual, float* outputs, long outer, long applies_gelu) {
  const Product product{inputs, weights, bias, residual, outputs, inner, outer, applies_gelu};
  for (long start = 0; start < rows; start += BLOCK_ROWS) {
    const long stop = least(rows, start + BLOCK_ROWS);
    for (long first = 0; first < inner; first += BLOCK_INNER) {
      const long count = least(BLOCK_INNER, inner - first);
      for (long column = 0; column < outer; column += NR)
        for (long row = start; row < stop; row += TILE_ROWS)
          call_with<TILE_ROWS>(least(TILE_ROWS, stop - row),
                               [&]<int R>() { tile_of_product<R>(product, row, first, count, column); });
    }
  }
}

// Attention within each of `rows` texts of `length` tokens. joined[rows * length][3][heads][dim] has queries, keys and
// values; outputs[rows * asked][heads][dim] those of the first `asked` tokens of each text.
void attend(const float* joined, long rows, long length, long heads, long dim, long asked, float* outputs) {
  const long size = heads * dim, step = 3 * size, padded = (length + NR - 1) / NR * NR;
  thread_local std::vector<float> memory;
  memory.resize(padded * (2 * dim + TILE_ROWS));
  float *scores = memory.data(), *keys = scores + padded * TILE_ROWS, *values = keys + padded * dim;
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  for (long text = 0; text < rows; text++)
    for (long number = 0; number < heads; number++) {
      const float* from = joined + text * length * step + number * dim;
      pack_keys(from + size, step, length, dim, scale, keys);
      pack_values(from + 2 * size, step, length, dim, values);
      float* const to = outputs + text * asked * size + number * dim;
      const Head head{from, keys, values, scores, to, step, size, length, padded, dim};
      for (long first = 0; first < asked; first += TILE_ROWS)
        call_with<TILE_ROWS>(least(TILE_ROWS, asked - first), [&]<int R>() { attend_queries<R>(head, first); });
    }
}

}  // extern "C"
