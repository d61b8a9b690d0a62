// Products, attention and norms of a transformer's layers in fp32, for x86 processors with AVX2 or AVX-512; products in
// int8 for those with AVX-512 VNNI.
//
// Compiled on first use, by native.py, with the instructions of the processor. A tile of the result is held in registers
// while the inner dimension is summed up. Weights are packed before, the outputs of a tile after those of another, so that
// they are read in order; they stay in the nearest caches while they meet the rows of a block.

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace {

// 24 of 32 registers hold sums with AVX-512, 12 of 16 with AVX2. Three vectors need fewer loads for a sum than two: 150
// instead of 130 GFLOP/s of 178 on a core of an Ice Lake.
#if defined(__AVX512F__)
constexpr long LANES = 16, TILE_ROWS = 8, TILE_VECTORS = 3;
#else
constexpr long LANES = 8, TILE_ROWS = 6, TILE_VECTORS = 2;
#endif
constexpr long TILE_COLUMNS = TILE_VECTORS * LANES;
constexpr long NR = 2 * LANES;  // columns of a panel, as attention reads them: a head has one or several
constexpr long QUERY_ROWS = LANES * 3 / 4;  // of a tile of attention
constexpr long BLOCK_ROWS = 264;  // 400 kB at 384 inner numbers; whole tiles of either size
constexpr long BLOCK_INNER = 384;  // a tile's weights of that have 24 kB, and 72 kB with AVX-512
constexpr long BLOCK_QUERIES = 24;  // whole tiles of either size; keys and values meet them in the first cache
constexpr long LINE = 16;           // numbers of a line of the caches
constexpr long AHEAD = 16;          // vectors of weights: by then a line has come from the second cache

typedef float Vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#if defined(__AVX512F__)
constexpr Ints LANE_NUMBERS = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
constexpr Ints LANE_NUMBERS = {0, 1, 2, 3, 4, 5, 6, 7};
#endif

inline Vec load(const float* from) { return *reinterpret_cast<const Vec*>(from); }
inline void store(float* to, Vec values) { *reinterpret_cast<Vec*>(to) = values; }
inline Vec all(float value) { return value - Vec{}; }
inline Vec smaller(Vec a, Vec b) { return a < b ? a : b; }
inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

// a / b to 2e-7 of it, by an estimate of 1 / b and a step of Newton: a division takes as long as all of the rest of GELU.
inline Vec quotient(Vec a, Vec b) {
#if defined(__AVX512F__)
  const Vec estimate = _mm512_rcp14_ps(b);
#else
  const Vec estimate = _mm256_rcp_ps(b);
#endif
  return a * (estimate * (2 - b * estimate));
}

// A quotient of polynomials, right to 5e-7 of 1 everywhere: beyond 4, erf is 1 in fp32.
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
  return quotient(x * above, below);
}

inline Vec gelu(Vec x) { return 0.5f * x * (1 + erf(x * 0.70710678118654752f)); }

// 2 to the power of numbers that are not above 0: a polynomial, to whose exponent the nearest whole number is added.
inline Vec exp2(Vec x) {
  x = larger(x, all(-125));
  const Vec shifted = x + 12582912.0f;  // 1.5 * 2^23: leaves the nearest whole number in the last bits
  const Vec rest = x - (shifted - 12582912.0f);
  Vec sum = all(1.5403530393e-4f);  // Taylor: what is left out is 1.2e-8 at most
  sum = sum * rest + 1.3333558146e-3f;
  sum = sum * rest + 9.6181291076e-3f;
  sum = sum * rest + 5.5504108665e-2f;
  sum = sum * rest + 2.4022650696e-1f;
  sum = sum * rest + 6.9314718056e-1f;
  sum = sum * rest + 1;
  return reinterpret_cast<Vec>(reinterpret_cast<Ints>(sum) + (reinterpret_cast<Ints>(shifted) << 23));
}

#if defined(__AVX512F__)
inline float sum_of(Vec values) { return _mm512_reduce_add_ps(values); }
inline float largest_of(Vec values) { return _mm512_reduce_max_ps(values); }
#else
inline float sum_of(Vec values) {
  __m128 sums = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
  sums = _mm_add_ps(sums, _mm_movehl_ps(sums, sums));
  return _mm_cvtss_f32(_mm_add_ss(sums, _mm_movehdup_ps(sums)));
}

inline float largest_of(Vec values) {
  __m128 largest = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
  largest = _mm_max_ps(largest, _mm_movehl_ps(largest, largest));
  return _mm_cvtss_f32(_mm_max_ss(largest, _mm_movehdup_ps(largest)));
}
#endif

// Numbers that begin a line of the caches: a vector across two lines takes twice as long to load.
class Aligned {
 public:
  float* of_size(long size) {
    if (static_cast<long>(numbers.size()) < size + LINE) numbers.resize(size + LINE);
    const auto address = reinterpret_cast<uintptr_t>(numbers.data());
    return numbers.data() + (-address % (LINE * sizeof(float))) / sizeof(float);
  }

 private:
  std::vector<float> numbers;
};

// R rows of `a` times V vectors of columns of `b`, added to `sums`.
template <int R, int V>
inline void multiply(const float* a, long a_step, const float* b, long inner, Vec (&sums)[R][V]) {
  for (long k = 0; k < inner; k++, b += V * LANES) {
    for (long line = 0; line < V * LANES; line += LINE) __builtin_prefetch(b + AHEAD * LANES + line);
    Vec columns[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) columns[v] = load(b + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const float factor = a[r * a_step + k];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) sums[r][v] += factor * columns[v];
    }
  }
}

// Calls `work` with a number, at most N, that the compiler knows, so that sums of so many rows stay in registers.
template <int N, typename Work>
inline void call_with(long number, Work work) {
  if constexpr (N > 0) {
    if (number == N)
      work.template operator()<N>();
    else
      call_with<N - 1>(number, work);
  }
}

inline long least(long a, long b) { return a < b ? a : b; }

// Calls `work` for each tile of rows and columns, with its place and its size.
template <typename Work>
inline void for_tiles(long start, long stop, long columns, Work work) {
  for (long column = 0; column < columns; column += TILE_COLUMNS)
    call_with<TILE_VECTORS>(least(TILE_VECTORS, (columns - column) / LANES), [&]<int V>() {
      for (long row = start; row < stop; row += TILE_ROWS)
        call_with<TILE_ROWS>(least(TILE_ROWS, stop - row), [&]<int R>() { work.template operator()<R, V>(row, column); });
    });
}

// Where numbers of a matrix are: token by token, or in panels of NR columns, each token by token.
struct Layout {
  long row_step, panel_step;
  long place(long row, long column) const { return row * row_step + column / NR * panel_step + column % NR; }
};

inline Layout layout_of(long rows, long columns, bool in_panels) {
  return in_panels ? Layout{NR, rows * NR} : Layout{columns, NR};
}

// Where a product goes, and what is added to it.
struct Target {
  const float *bias, *residual;
  float* outputs;
  Layout to;  // of residual and outputs
  bool applies_gelu;
};

// A tile of R rows and V vectors of columns: what `accumulate` adds to bias and residual, or to what is there unless it is
// the first part of the inner dimension. GELU comes after the last.
template <int R, int V, typename Accumulate>
inline void make_tile(const Target& target, long row, long column, bool is_first, bool is_last, Accumulate accumulate) {
  Vec sums[R][V];
  long places[V];
  for (int v = 0; v < V; v++) places[v] = target.to.place(row, column + v * LANES);
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) {
      const long place = places[v] + r * target.to.row_step;
      Vec start = is_first ? load(target.bias + column + v * LANES) : load(target.outputs + place);
      if (is_first && target.residual) start += load(target.residual + place);
      sums[r][v] = start;
      __builtin_prefetch(target.outputs + place, 1);
    }
  accumulate(sums);
  const bool ends = target.applies_gelu && is_last;
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++)
      store(target.outputs + places[v] + r * target.to.row_step, ends ? gelu(sums[r][v]) : sums[r][v]);
}

#if defined(__AVX512VNNI__)

constexpr float LEVELS = 255;  // steps between the least and the largest number of a group

// What a group of inputs and the columns of a tile have.
struct Int8Group {
  const int8_t* weights;  // of 4 inputs at a time
  const float* scales;    // of a group and an output
  const float* sums;      // of the group's weights of an output
};

// Numbers of a group are `least` + level * `step`.
struct Range {
  float least, step;
};

// Numbers that share a range become levels. From the least to the largest, as most groups are not symmetric, and those
// after GELU are nearly all above 0: half of the levels would never be used.
inline Range round_group(const float* values, long count, uint8_t* levels) {
  __m512 least = _mm512_loadu_ps(values), largest = least, not_finite = _mm512_setzero_ps();
  for (long k = 0; k < count; k += LANES) {
    const __m512 value = _mm512_loadu_ps(values + k);
    least = _mm512_min_ps(least, value);
    largest = _mm512_max_ps(largest, value);
    not_finite = _mm512_fmadd_ps(value, _mm512_setzero_ps(), not_finite);  // NaN from there on
  }
  const float lowest = _mm512_reduce_min_ps(least);
  const float width = _mm512_reduce_max_ps(largest) - lowest + _mm512_reduce_add_ps(not_finite);
  const __m512 origin = _mm512_set1_ps(lowest), per_step = _mm512_set1_ps(width > 0 ? LEVELS / width : 0);
  for (long k = 0; k < count; k += LANES) {
    const __m512 above = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(values + k), origin), per_step);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(levels + k), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(above)));
  }
  return {lowest, width / LEVELS};
}

// vpdpbusd. With its intrinsic GCC 12 copies and spills most of a tile's counts in each step, which halves the speed.
inline void add_products(__m512i& counts, __m512i levels, __m512i weights) {
  asm("vpdpbusd %2, %1, %0" : "+v"(counts) : "v"(levels), "v"(weights));
}

// What a group of inputs of R rows adds to `sums`. Not inlined: there are registers for its counts or for the sums.
template <int R, int V>
[[gnu::noinline]] void add_group(const uint8_t* levels, long inner, long count, const Range* ranges, long groups,
                                 Int8Group group, Vec (&sums)[R][V]) {
  __m512i counts[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) counts[r][v] = _mm512_setzero_si512();
  const int8_t* b = group.weights;
  for (long k = 0; k < count; k += 4, b += 4 * V * LANES) {
    for (long line = 0; line < V * LANES; line += LINE) __builtin_prefetch(b + 4 * (AHEAD * LANES + line));
    __m512i columns[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) columns[v] = _mm512_loadu_si512(b + 4 * v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      int32_t four;
      __builtin_memcpy(&four, levels + r * inner + k, 4);
      const __m512i levels_of_row = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) add_products(counts[r][v], levels_of_row, columns[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) {
    const Vec scales = load(group.scales + v * LANES), weights = load(group.sums + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const Range range = ranges[r * groups];
      sums[r][v] += static_cast<Vec>(_mm512_cvtepi32_ps(counts[r][v])) * scales * range.step + weights * range.least;
    }
  }
}

// R rows of levels times V vectors of columns, added to `sums`.
template <int R, int V>
inline void multiply_int8(const uint8_t* levels, const Range* ranges, long inner, long group, Int8Group first,
                          Vec (&sums)[R][V]) {
  const long groups = inner / group, columns = V * LANES;
  for (long part = 0; part < groups; part++) {
    const Int8Group of_part{first.weights + part * group * columns, first.scales + part * columns,
                            first.sums + part * columns};
    add_group<R, V>(levels + part * group, inner, group, ranges + part, groups, of_part, sums);
  }
}

#endif

inline void transpose_8x8(__m256 (&rows)[8]) {
  __m256 pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
      fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
    }
  for (int i = 0; i < 4; i++) {
    rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

// Keys of one head, scaled and transposed, in panels of NR keys: dimension by dimension. Beyond the last key is 0.
void pack_keys(const float* keys, Layout layout, long length, long dim, float scale, float* packed) {
  const __m256 factor = _mm256_set1_ps(scale);
  for (long panel = 0; panel < length; panel += NR, packed += NR * dim)
    for (long d = 0; d < dim; d += 8)
      for (long lane = 0; lane < NR; lane += 8) {
        __m256 rows[8];
        for (long i = 0; i < 8; i++) {
          const long key = panel + lane + i;
          rows[i] = key < length ? _mm256_loadu_ps(keys + layout.place(key, d)) : _mm256_setzero_ps();
        }
        transpose_8x8(rows);
        for (long i = 0; i < 8; i++) _mm256_storeu_ps(packed + (d + i) * NR + lane, _mm256_mul_ps(rows[i], factor));
      }
}

// Values of one head in panels of NR dimensions: key by key.
void pack_values(const float* values, Layout layout, long length, long dim, float* packed) {
  for (long d = 0; d < dim; d += NR)
    for (long key = 0; key < length; key++, packed += NR) {
      const float* from = values + layout.place(key, d);
      store(packed, load(from));
      store(packed + LANES, load(from + LANES));
    }
}

struct Head {
  const float *queries, *keys, *values;  // keys and values are packed
  Layout layout;                         // of queries
  float *scores, *outputs;               // scores of a block of queries
  long value_step;                       // between panels of values
  long size, length, dim;
  long padded, score_step;               // keys of whole panels, and the distance of two queries' scores
};

// Scores of R queries of a block and a panel of keys, and the largest of each query so far.
template <int R>
void score(const Head& head, long first, long in_block, long key, Vec* most) {
  Vec sums[R][2] = {};
  for (long d = 0; d < head.dim; d += NR)
    multiply(head.queries + head.layout.place(first + in_block, d), head.layout.row_step,
                head.keys + key * head.dim + d * NR, NR, sums);
  if (key + NR > head.length)  // what is beyond the last key adds nothing
    for (int half = 0; half < 2; half++) {
      const Ints is_key = LANE_NUMBERS < static_cast<int32_t>(head.length - key - half * LANES);
      for (int r = 0; r < R; r++) sums[r][half] = is_key ? sums[r][half] : all(-INFINITY);
    }
  for (int r = 0; r < R; r++) {
    float* const target = head.scores + (in_block + r) * head.score_step + key;
    store(target, sums[r][0]);
    store(target + LANES, sums[r][1]);
    most[in_block + r] = larger(most[in_block + r], larger(sums[r][0], sums[r][1]));
  }
}

// Scores of a query become 2 to the power of score - largest; gives 1 / their sum.
float exponentials(float* row, long padded, float largest) {
  Vec sums[2] = {};
  for (long k = 0; k < padded; k += NR)
    for (long half = 0; half < 2; half++) {
      const Vec value = exp2(load(row + k + half * LANES) - largest);
      store(row + k + half * LANES, value);
      sums[half] += value;
    }
  return 1 / sum_of(sums[0] + sums[1]);
}

// Sums of a panel of values for R queries of a block, each with its share.
template <int R>
void gather(const Head& head, long first, long in_block, long d, const float* share) {
  Vec sums[R][2] = {};
  const float* const panel = head.values + d / NR * head.value_step;
  multiply(head.scores + in_block * head.score_step, head.score_step, panel, head.length, sums);
  for (int r = 0; r < R; r++)
    for (int half = 0; half < 2; half++)
      store(head.outputs + (first + in_block + r) * head.size + d + half * LANES, sums[r][half] * share[in_block + r]);
}

void attend_block(const Head& head, long first, long queries) {
  Vec most[BLOCK_QUERIES];
  float share[BLOCK_QUERIES];
  for (long q = 0; q < queries; q++) most[q] = all(-INFINITY);
  for (long key = 0; key < head.length; key += NR)
    for (long q = 0; q < queries; q += QUERY_ROWS)
      call_with<QUERY_ROWS>(least(QUERY_ROWS, queries - q), [&]<int R>() { score<R>(head, first, q, key, most); });
  for (long q = 0; q < queries; q++)
    share[q] = exponentials(head.scores + q * head.score_step, head.padded, largest_of(most[q]));
  for (long d = 0; d < head.dim; d += NR)
    for (long q = 0; q < queries; q += QUERY_ROWS)
      call_with<QUERY_ROWS>(least(QUERY_ROWS, queries - q), [&]<int R>() { gather<R>(head, first, q, d, share); });
}

}  // namespace

extern "C" {

// How many columns a panel has; the number of outputs must be a multiple, and that of a head's dimensions.
long panel_outputs() { return NR; }

// How many outputs the packed weights of a tile have; the last of a product may have fewer.
long tile_outputs() { return TILE_COLUMNS; }

// outputs[rows][outer] = inputs[rows][inner] * weights + bias, + residual[rows][outer] unless that is null, and GELU of
// that if it is asked for. weights[outer / tile][inner][tile]. In panels: outputs[outer / NR][rows][NR].
void multiply_rows(const float* inputs, long rows, long inner, const float* weights, const float* bias,
                   const float* residual, float* outputs, long outer, long applies_gelu, long in_panels) {
  const Target target{bias, residual, outputs, layout_of(rows, outer, in_panels), applies_gelu != 0};
  for (long start = 0; start < rows; start += BLOCK_ROWS) {
    const long stop = least(rows, start + BLOCK_ROWS);
    for (long first = 0; first < inner; first += BLOCK_INNER) {
      const long count = least(BLOCK_INNER, inner - first);
      for_tiles(start, stop, outer, [&]<int R, int V>(long row, long column) {
        make_tile<R, V>(target, row, column, first == 0, first + count == inner, [&](Vec(&sums)[R][V]) {
          multiply(inputs + row * inner + first, inner, weights + column * inner + first * V * LANES, count, sums);
        });
      });
    }
  }
}

#if defined(__AVX512VNNI__)

// The same in int8: inputs are rounded to 256 levels, of `group` neighbours of a row from the least to the largest.
// weights[outer / tile][inner / 4][tile][4]; scales and their groups' sums have [outer / tile][inner / group][tile].
void multiply_rows_int8(const float* inputs, long rows, long inner, long group, const int8_t* weights,
                        const float* scales, const float* sums, const float* bias, const float* residual,
                        float* outputs, long outer, long applies_gelu, long in_panels) {
  const Target target{bias, residual, outputs, layout_of(rows, outer, in_panels), applies_gelu != 0};
  const long groups = inner / group;
  thread_local Aligned memory;
  Range* const ranges = reinterpret_cast<Range*>(memory.of_size(BLOCK_ROWS * (2 * groups + inner / 4)));
  uint8_t* const rounded = reinterpret_cast<uint8_t*>(ranges + BLOCK_ROWS * groups);
  for (long start = 0; start < rows; start += BLOCK_ROWS) {
    const long stop = least(rows, start + BLOCK_ROWS);
    for (long row = start; row < stop; row++)
      for (long part = 0; part < groups; part++)
        ranges[(row - start) * groups + part] = round_group(inputs + row * inner + part * group, group,
                                                            rounded + (row - start) * inner + part * group);
    for_tiles(start, stop, outer, [&]<int R, int V>(long row, long column) {
      make_tile<R, V>(target, row, column, true, true, [&](Vec(&tile)[R][V]) {
        const Int8Group first{weights + column * inner, scales + column * groups, sums + column * groups};
        multiply_int8(rounded + (row - start) * inner, ranges + (row - start) * groups, inner, group, first, tile);
      });
    });
  }
}

#endif

// Attention within each of `rows` texts of `length` tokens, from token `start` on. joined[tokens][3][heads][dim], or the
// same in panels, has queries, keys and values; outputs[rows * asked][heads][dim] what the first `asked` tokens of each
// text gather.
void attend(const float* joined, long tokens, long start, long rows, long length, long heads, long dim, long asked,
            float* outputs, long in_panels) {
  const long size = heads * dim, padded = (length + NR - 1) / NR * NR;
  const long score_step = padded + LINE;  // not a power of 2, whose multiples share few places of the first cache
  const Layout layout = layout_of(tokens, 3 * size, in_panels);
  thread_local Aligned memory;
  float* const keys = memory.of_size(padded * 2 * dim + score_step * BLOCK_QUERIES);
  float *packed = keys + padded * dim, *scores = packed + padded * dim;
  const float scale = 1.44269504088896341f / std::sqrt(static_cast<float>(dim));  // log2(e): powers are of 2
  for (long text = 0; text < rows; text++)
    for (long number = 0; number < heads; number++) {
      const float* const from = joined + layout.place(start + text * length, number * dim);
      const float* const values = from + layout.place(0, 2 * size);
      pack_keys(from + layout.place(0, size), layout, length, dim, scale, keys);
      if (!in_panels) pack_values(values, layout, length, dim, packed);
      const Head head{.queries = from,
                      .keys = keys,
                      .values = in_panels ? values : packed,
                      .layout = layout,
                      .scores = scores,
                      .outputs = outputs + text * asked * size + number * dim,
                      .value_step = in_panels ? layout.panel_step : length * NR,
                      .size = size,
                      .length = length,
                      .dim = dim,
                      .padded = padded,
                      .score_step = score_step};
      for (long first = 0; first < asked; first += BLOCK_QUERIES)
        attend_block(head, first, least(BLOCK_QUERIES, asked - first));
    }
}

// Layer norm of each row of values[rows][size], in place; `size` is a multiple of NR.
void normalize_rows(float* values, long rows, long size, const float* weight, const float* bias, float eps) {
  for (long row = 0; row < rows; row++, values += size) {
    Vec sums[2] = {};
    for (long k = 0; k < size; k += NR)
      for (long half = 0; half < 2; half++) sums[half] += load(values + k + half * LANES);
    const float mean = sum_of(sums[0] + sums[1]) / size;
    Vec squares[2] = {};
    for (long k = 0; k < size; k += NR)
      for (long half = 0; half < 2; half++) {
        const Vec apart = load(values + k + half * LANES) - mean;
        squares[half] += apart * apart;
      }
    const float factor = 1 / std::sqrt(sum_of(squares[0] + squares[1]) / size + eps);
    for (long k = 0; k < size; k += LANES)
      store(values + k, (load(values + k) - mean) * factor * load(weight + k) + load(bias + k));
  }
}

// Calls each function once. A processor that announces instructions and has them not ends the process, so that this is
// done in one that nothing depends on.
void try_all() {
  std::vector<float> numbers(6 * NR * NR), results(3 * NR);
  float* const zeros = numbers.data();
  multiply_rows(zeros, 1, NR, zeros, zeros, zeros, results.data(), NR, 1, 0);
  attend(zeros, 1, 0, 1, 1, 1, NR, 1, results.data(), 1);
  normalize_rows(results.data(), 1, NR, zeros, zeros, 1);
#if defined(__AVX512VNNI__)
  const std::vector<int8_t> weights(NR * NR);
  multiply_rows_int8(zeros, 1, NR, NR, weights.data(), zeros, zeros, zeros, zeros, results.data(), NR, 1, 0);
#endif
}

}  // extern "C"
