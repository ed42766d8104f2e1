/* gpu_judge.c - puts a round's inputs on the device, runs one block a row, brings the answers back: a few
 * kilobytes each way. */
#include "backends/nvidia/gpu_judge.h"
#include "core/io/error.h"
#include "core/numbers/judge.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define AGAIN "start the program again"
#define MOST_BIAS 4096 /* more entries than that are judged on the CPU */

struct gpu_judge {
  const cuda_gpu *gpu;
  cuda_stream stream;
  judge_inputs in;
  int32_t vocab, most_rows;
  unsigned char *staging;       /* [staging_bytes] pinned: what goes over, and behind it the answers */
  cuda_address device, scratch; /* its copy; p, spare, order, block and buckets */
  size_t staging_bytes, used;
  judge_buffers buffers; /* addresses on the device */
};

static char *find_kernels(char *path, size_t n) {
  Dl_info self;
  const char *slash =
      dladdr((void *)(uintptr_t)&find_kernels, &self) && self.dli_fname ? strrchr(self.dli_fname, '/') : NULL;
  snprintf(path, n, "%.*s/specc_judge.fatbin", slash ? (int)(slash - self.dli_fname) : 1,
      slash ? self.dli_fname : ".");
  return path;
}

static void *read_file(const char *path) {
  struct stat found;
  FILE *file = stat(path, &found) || !found.st_size ? NULL : fopen(path, "re");
  char *bytes = file ? malloc((size_t)found.st_size) : NULL;
  if (bytes && fread(bytes, 1, (size_t)found.st_size, file) != (size_t)found.st_size)
    free(bytes), bytes = NULL;
  if (file) fclose(file);
  return bytes;
}

int gpu_kernels_load(gpu_kernels *k, const cuda_gpu *gpu, const char *path) {
  char beside[4096];
  void *image = read_file(path ? path : find_kernels(beside, sizeof beside));
  *k = (gpu_kernels){0};
  if (image && !gpu->driver->module_load(&k->module, image) &&
      gpu->driver->module_function(&k->judge, k->module, "specc_judge_rows_kernel"))
    gpu_kernels_free(k, gpu);
  free(image);
  return k->judge != NULL;
}

void gpu_kernels_free(gpu_kernels *k, const cuda_gpu *gpu) {
  if (k->module) gpu->driver->module_unload(k->module);
  *k = (gpu_kernels){0};
}

/* ------------------------------------------------------------------ buffers */
static void *as_pointer(cuda_address a) {
  return (void *)(uintptr_t)a;
}

static size_t pad_size(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

static int make_scratch(gpu_judge *g) {
  size_t rows = (size_t)g->most_rows, n = (size_t)g->vocab, room = 2;
  while (room < n) room *= 2;
  size_t sizes[5] = {pad_size(rows * n * 8), pad_size(rows * n * 8), pad_size(rows * room * 4),
      pad_size(rows * (n / 64 + 1) * 8), pad_size(rows * BUCKETS * 4)};
  cuda_address at[5], whole = 0;
  for (int i = 0; i < 5; i++) at[i] = whole, whole += sizes[i];
  int code = cuda_check(g->gpu->driver, g->gpu->driver->alloc(&g->scratch, whole),
      "could not allocate room to judge rows", "close other programs");
  g->buffers.p = as_pointer(g->scratch + at[0]), g->buffers.spare = as_pointer(g->scratch + at[1]),
  g->buffers.order = as_pointer(g->scratch + at[2]);
  g->buffers.block = as_pointer(g->scratch + at[3]), g->buffers.buckets = as_pointer(g->scratch + at[4]);
  return code;
}

static int make_staging(gpu_judge *g) {
  const cuda_driver *d = g->gpu->driver;
  void *memory = NULL;
  g->staging_bytes = 8192 + 8 * (size_t)g->in.room + 12 * MOST_BIAS + 4 * (size_t)g->vocab;
  int code = cuda_check(d, d->host_alloc(&memory, g->staging_bytes, CUDA_HOST_PORTABLE),
      "could not allocate pinned memory", "close other programs");
  g->staging = memory;
  return code ? code
              : cuda_check(d, d->alloc(&g->device, g->staging_bytes), "could not allocate room to judge rows",
                    "close other programs");
}

int gpu_judge_create(gpu_judge **out, const cuda_gpu *gpu, cuda_stream stream, int32_t vocab, int32_t longest,
    int32_t most_rows) {
  gpu_judge *g = *out = calloc(1, sizeof *g);
  if (!g) return specc_error(SPECC_E_MEMORY, "no memory left to judge rows; close other programs");
  g->gpu = gpu, g->stream = stream, g->vocab = vocab,
  g->most_rows = most_rows < JUDGE_ROWS ? most_rows : JUDGE_ROWS;
  int code = judge_inputs_create(&g->in, vocab, longest);
  if (!code) code = make_staging(g);
  if (!code) code = make_scratch(g);
  if (code) gpu_judge_free(g), *out = NULL;
  return code;
}

void gpu_judge_free(gpu_judge *g) {
  if (!g) return;
  if (g->staging) g->gpu->driver->host_free(g->staging);
  if (g->device) g->gpu->driver->free(g->device);
  if (g->scratch) g->gpu->driver->free(g->scratch);
  judge_inputs_free(&g->in);
  free(g);
}

/* ------------------------------------------------------------------ a call */
/* Copies bytes behind what is staged and gives their place on the device; NULL for none or where they do not
 * fit. */
static void *stage(gpu_judge *g, const void *data, size_t bytes) {
  size_t at = (g->used + 15) / 16 * 16;
  if (!bytes || !data || at + bytes > g->staging_bytes) return NULL;
  memcpy(g->staging + at, data, bytes);
  g->used = at + bytes;
  return as_pointer(g->device + at);
}

static int stage_all(gpu_judge *g, const specc_round *j, void **options, size_t *answers) {
  const judge_inputs *in = &g->in;
  judge_buffers *b = &g->buffers;
  judge_answer empty[JUDGE_ROWS] = {{0, 0, -1, 0}};
  size_t edits = (size_t)in->n_edits * sizeof(int32_t), bias = (size_t)j->options->n_bias;
  g->used = 0;
  *options = stage(g, &in->options, sizeof in->options);
  b->rows = stage(g, in->rows, (size_t)j->rows * sizeof *in->rows);
  b->edit_ids = stage(g, in->edit_ids, edits), b->edit_counts = stage(g, in->edit_counts, edits);
  b->bias_ids = stage(g, j->options->bias_ids, bias * sizeof(int32_t)),
  b->bias_values = stage(g, j->options->bias_values, bias * sizeof(double));
  b->banned = stage(g, j->banned, (size_t)j->n_banned * sizeof(int32_t));
  b->answers = stage(g, empty, (size_t)j->rows * sizeof *empty);
  *answers = (size_t)((cuda_address)(uintptr_t)b->answers - g->device);
  bool fits = *options && b->rows && b->answers && (!in->n_edits || b->edit_counts) &&
              (!bias || b->bias_values) && (!j->n_banned || b->banned);
  return fits ? SPECC_OK
              : specc_error(SPECC_E_UNSUPPORTED,
                    "%d entries of logit bias are more than the GPU's row kernels take", j->options->n_bias);
}

static int launch(gpu_judge *g, const gpu_kernels *k, int32_t rows, void *options) {
  const cuda_driver *d = g->gpu->driver;
  cuda_address address = (cuda_address)(uintptr_t)options;
  void *parameters[] = {&address, &g->buffers};
  int code = cuda_check(
      d, d->to_device(g->device, g->staging, g->used, g->stream), "could not copy a round's inputs", AGAIN);
  if (code) return code;
  return cuda_check(d,
      d->launch(k->judge, (unsigned)rows, 1, 1, JUDGE_THREADS, 1, 1, 0, g->stream, parameters, NULL),
      "could not start the row kernels", AGAIN);
}

int gpu_judge_run(gpu_judge *g, const gpu_kernels *k, const specc_round *j, cuda_address logits,
    int32_t *accepted, int32_t *token) {
  const cuda_driver *d = g->gpu->driver;
  size_t at;
  void *options;
  if (j->q || j->rows > g->most_rows)
    return specc_error(
        SPECC_E_UNSUPPORTED, "the GPU's row kernels judge one-hot proposals of up to %d rows", g->most_rows);
  int code = judge_inputs_fill(&g->in, j, g->vocab);
  g->buffers.logits = as_pointer(logits), g->buffers.q = NULL;
  if (!code) code = stage_all(g, j, &options, &at);
  if (!code) code = launch(g, k, j->rows, options);
  judge_answer *answers = (judge_answer *)(void *)(g->staging + (code ? 0 : at));
  if (!code)
    code = cuda_check(d, d->to_host(answers, g->device + at, (size_t)j->rows * sizeof *answers, g->stream),
        "could not copy a round's answers", AGAIN);
  if (!code) code = cuda_check(d, d->stream_wait(g->stream), "failed in the row kernels", AGAIN);
  for (int32_t i = 0, reached = 1; !code && i < j->rows; i++) {
    accepted[i] = reached ? answers[i].accepted : 0, token[i] = reached ? answers[i].token : -1;
    if (reached)
      code = judge_report_failure(&answers[i], j); /* a row that the round does not reach may have no law */
    reached = accepted[i];
  }
  return code;
}
