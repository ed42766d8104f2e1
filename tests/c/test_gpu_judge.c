/* test_gpu_judge.c - the row kernels on a GPU against their host path, bit for bit, and how long both take.
 * test_gpu_judge KERNELS.fatbin [VOCAB ROUNDS]. Skips without a driver, a GPU or the file; the stub libcuda
 * counts as a GPU. */
#include "backends/nvidia/gpu_judge.h"
#include "core/numbers/judge.h"
#include "expect.h"
#include <math.h>
#include <time.h>

#define ROWS 5

static uint64_t state = 7;
static uint32_t roll(uint32_t n) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)((state >> 33) % n);
}
static double unit(void) {
  return roll(1 << 20) / 1048576.0;
}
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct bench {
  cuda_gpu gpu;
  cuda_stream stream;
  gpu_kernels kernels;
  gpu_judge *judge;
  cuda_address logits;
  double there, here;
  int64_t rows;
} bench;

static specc_options make_options(int32_t *ids, double *values, int32_t vocab) {
  ids[0] = (int32_t)roll((uint32_t)vocab), values[0] = unit() * 6 - 3;
  return (specc_options){.temperature = roll(4) ? 0.3 + unit() : 0,
      .top_p = roll(2) ? 1 : 0.3 + 0.7 * unit(),
      .min_p = roll(4) ? 0 : 0.05,
      .repetition_penalty = roll(2) ? 1 : 1.1,
      .frequency_penalty = roll(2) ? 0 : 0.3,
      .top_k = roll(2) ? 0 : 1 + (int32_t)roll(200),
      .n_bias = (int32_t)roll(2),
      .bias_ids = ids,
      .bias_values = values};
}

static void compare(bench *b, float *logits, double *p, int32_t vocab, int flat) {
  int32_t ids[1], history[40], proposed[ROWS - 1], accepted[2][ROWS], token[2][ROWS];
  double values[1], spread = flat ? 0.01 : 2 + 10 * unit();
  specc_options o = make_options(ids, values, vocab);
  for (int32_t i = 0; i < ROWS * vocab; i++) logits[i] = (float)((unit() + unit() - 1) * spread);
  for (int i = 0; i < 40; i++) history[i] = (int32_t)roll((uint32_t)vocab);
  for (int i = 0; i < ROWS - 1; i++) {
    proposed[i] = (int32_t)roll((uint32_t)vocab);
    if (roll(2)) logits[i * vocab + proposed[i]] += 12;
  }
  specc_round j = {.options = &o,
      .history = history,
      .proposed = proposed,
      .seed = state,
      .sample = roll(4),
      .rule = (int32_t)roll(2),
      .position = 40,
      .n_ids = vocab,
      .rows = ROWS,
      .n_proposed = ROWS - 1,
      .n_history = 40,
      .n_prompt = 20};
  EXPECT(
      !b->gpu.driver->to_device(b->logits, logits, sizeof(float) * (size_t)ROWS * (size_t)vocab, b->stream) &&
      !b->gpu.driver->stream_wait(b->stream));
  double begin = now();
  EXPECT_OK(gpu_judge_run(b->judge, &b->kernels, &j, b->logits, accepted[0], token[0]));
  b->there += now() - begin, begin = now();
  EXPECT_OK(specc_judge_rows(&j, logits, vocab, p, accepted[1], token[1]));
  b->here += now() - begin;
  for (int row = 0, reached = 1; row < ROWS && reached; row++) {
    EXPECT(accepted[0][row] == accepted[1][row] && token[0][row] == token[1][row]);
    reached = accepted[1][row], b->rows++;
  }
}

static int start(bench *b, const char *file, int32_t vocab) {
  int code = cuda_open(0, &b->gpu);
  if (!code) code = cuda_enter(&b->gpu);
  if (code) return printf("no GPU: %s\n", specc_last_error()), SKIP;
  if (!gpu_kernels_load(&b->kernels, &b->gpu, file))
    return printf("no kernels for this GPU in %s\n", file), SKIP;
  EXPECT(!b->gpu.driver->stream_create(&b->stream, CUDA_STREAM_NON_BLOCKING));
  EXPECT(!b->gpu.driver->alloc(&b->logits, sizeof(float) * ROWS * (size_t)vocab));
  return EXPECT_OK(gpu_judge_create(&b->judge, &b->gpu, b->stream, vocab, 64, ROWS)) ? 0 : 1;
}

int main(int n, char **arguments) {
  int32_t vocab = n > 2 ? atoi(arguments[2]) : 3000, rounds = n > 3 ? atoi(arguments[3]) : 60;
  bench b = {.rows = 0};
  const char *file = n > 1 ? arguments[1] : getenv("SPECC_KERNELS");
  if (!file) return printf("usage: test_gpu_judge KERNELS.fatbin [VOCAB ROUNDS]\n"), SKIP;
  int code = start(&b, file, vocab);
  if (code) return code;
  float *logits = malloc(sizeof(float) * ROWS * (size_t)vocab);
  double *p = malloc(sizeof(double) * ROWS * (size_t)vocab);
  for (int32_t i = 0; i < rounds; i++) compare(&b, logits, p, vocab, i % 8 == 7);
  printf("%s, SM %d: %lld rows of %d ids equal to the CPU's; %.3f ms a round of %d rows there, %.3f ms by "
         "the host path here\n",
      b.gpu.name, b.gpu.sm, (long long)b.rows, vocab, 1e3 * b.there / rounds, ROWS, 1e3 * b.here / rounds);
  gpu_judge_free(b.judge), gpu_kernels_free(&b.kernels, &b.gpu);
  b.gpu.driver->free(b.logits), b.gpu.driver->stream_destroy(b.stream);
  cuda_leave(&b.gpu), cuda_close(&b.gpu);
  free(logits), free(p);
  return failures != 0;
}
