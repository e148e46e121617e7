/* Stochastic rounding of float32 to float16 or bfloat16, with random bits that are a function of (key, element number).
 *
 * Element i takes the 16 bits number i % 4 of the word mix(key + (i / 4 + 1) * GOLDEN), splitmix64's own sequence; so
 * neither threads nor the order of work change a result, and the PyTorch form of the same arithmetic gives equal bits.
 *
 * The magnitude's bits a are cut after random bits were added below the last kept one:
 *   bfloat16   (a + 16 bits) >> 16
 *   float16    (a + 13 bits) >> 13, minus the difference of the exponents' biases; below 2^-14, where half numbers are
 *              2^-24 apart, 2^-14 is added first: there float32 has 13 bits below 2^-24 as well
 * What reaches infinity stays there or, saturating, becomes the largest number. A NaN becomes the quiet NaN.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <omp.h>

#define WORDS 256          /* random words per piece of work: 1024 elements, a few kB */
#define PIECE (4 * WORDS)
#define SERIAL (1 << 15)   /* elements below which threads cost more than they save */
#define GOLDEN 0x9E3779B97F4A7C15u

static inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline uint16_t to_half(uint32_t bits, uint32_t noise, uint32_t largest) {
    uint32_t a = bits & 0x7FFFFFFFu;
    uint32_t small = a < 0x38800000u;                      /* below 2^-14 */
    float magnitude, offset;
    uint32_t raised = small ? 0x38800000u : 0u;
    memcpy(&magnitude, &a, sizeof a);
    memcpy(&offset, &raised, sizeof raised);
    magnitude += offset;
    uint32_t word;
    memcpy(&word, &magnitude, sizeof word);
    word = ((word + (noise & 0x1FFFu)) >> 13) - (small ? 0x1C400u : 0x1C000u);
    word = word > largest ? largest : word;
    word = a > 0x7F800000u ? 0x7E00u : word;
    return (uint16_t)(word | (bits >> 16 & 0x8000u));
}

static inline uint16_t to_brain(uint32_t bits, uint32_t noise, uint32_t largest) {
    uint32_t a = bits & 0x7FFFFFFFu;
    uint32_t word = (a + noise) >> 16;
    word = word > largest ? largest : word;
    word = a > 0x7F800000u ? 0x7FC0u : word;
    return (uint16_t)(word | (bits >> 16 & 0x8000u));
}

/* out[count] from x[count]; brain: bfloat16 instead of float16. */
void conveyor_round(const float *restrict x, uint16_t *restrict out, ptrdiff_t count, uint64_t key, int brain,
                    int saturate) {
    int threads = count < SERIAL ? 1 : omp_get_max_threads();
    ptrdiff_t pieces = (count + PIECE - 1) / PIECE;
    uint32_t infinite = brain ? 0x7F80u : 0x7C00u;
    uint32_t largest = infinite - (saturate != 0);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t piece = 0; piece < pieces; piece++) {
        uint64_t words[WORDS];
        uint16_t noise[PIECE];
        uint32_t bits[PIECE];
        ptrdiff_t first = piece * PIECE;
        ptrdiff_t here = count - first < PIECE ? count - first : PIECE;
        uint64_t start = key + GOLDEN * ((uint64_t)piece * WORDS + 1);
#pragma omp simd
        for (int j = 0; j < WORDS; j++) words[j] = mix(start + (uint64_t)j * GOLDEN);
        memcpy(noise, words, sizeof noise);
        memcpy(bits, x + first, (size_t)here * sizeof(float));
        uint16_t *restrict to = out + first;
        if (brain)
#pragma omp simd
            for (ptrdiff_t j = 0; j < here; j++) to[j] = to_brain(bits[j], noise[j], largest);
        else
#pragma omp simd
            for (ptrdiff_t j = 0; j < here; j++) to[j] = to_half(bits[j], noise[j], largest);
    }
}
