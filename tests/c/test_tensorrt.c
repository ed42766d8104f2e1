/* test_tensorrt.c - the TensorRT backend, whole, over stub_tensorrt.cpp and stub_cuda.c: certified, sampled
 * from, misused. */
#include "expect.h"
#include "stub_plan.h"
#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

#define VOCAB 60

static const char *library;
static char path[] = "/tmp/specc-plan-XXXXXX", version[32];

static int count(const char *name) {
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  int *place = cuda ? dlsym(cuda, name) : NULL;
  return place ? *place : -1;
}
static int is_rtx(void) {
  return !strncmp(specc_tensorrt_headers(), "TensorRT for RTX", 16);
}
static int launches(void) {
  return count("stub_cuda_launches");
}

static void write_plan(const stub_plan *plan) {
  unsigned char bytes[4096];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 7);
  memcpy(bytes, plan, sizeof *plan);
  FILE *file = fopen(path, "wb");
  fwrite(bytes, 1, sizeof bytes, file);
  fclose(file);
}

static stub_plan good_plan(int32_t cache_type, int32_t rows_out) {
  return (stub_plan){.magic = STUB_MAGIC,
      .layers = 2,
      .kv_heads = 2,
      .head_dim = 4,
      .capacity = 48,
      .vocab = VOCAB,
      .n_widths = 5,
      .widths = {1, 2, 3, 5, 16},
      .cache_type = cache_type,
      .rows_out = rows_out};
}

static int open_backend(const stub_plan *p, specc_backend *backend) {
  specc_tensorrt_options o = {.plan = path,
      .library = library,
      .rtx = is_rtx(),
      .version = version,
      .platform =
#if defined(__aarch64__)
          "linux-aarch64",
#else
          "linux-x86_64",
#endif
      .sm = 87,
      .cache_type = p->cache_type,
      .rows_out = p->rows_out,
      .hidden = p->hidden,
      .vocab = VOCAB,
      .layers = p->layers,
      .kv_heads = p->kv_heads,
      .head_dim = p->head_dim,
      .capacity = p->capacity,
      .n_widths = p->n_widths};
  memcpy(o.widths, p->widths, sizeof o.widths);
  write_plan(p);
  return specc_tensorrt_backend(&o, backend);
}

static specc_model *make_model(const specc_backend *target) {
  static const int32_t eos = 0;
  specc_drafter drafter;
  specc_model *model = NULL;
  EXPECT(!specc_ngram_drafter(1, 3, &drafter));
  specc_model_parts parts = {.target = target,
      .drafter = &drafter,
      .n_ids = VOCAB,
      .context = 32,
      .k_max = 4,
      .n_eos = 1,
      .eos = &eos};
  EXPECT_OK(specc_model_create(&parts, &model));
  return model;
}

static int certify(specc_model *model, specc_certificate *certificate) {
  int32_t ids[128];
  for (int32_t i = 0; i < 128; i++) ids[i] = i * 17 % VOCAB;
  specc_certify_options o = {.tokens = ids, .n_tokens = 128, .seed = 3};
  int code = specc_certify(model, &o, certificate);
  for (int32_t i = 0; i < certificate->n_widths; i++)
    certificate->call_ms[i] = 1; /* a stand-in's times say nothing: rows pay */
  return code;
}

/* Text of a model: ids of one generation from a repetitive prompt, so that the drafter proposes. */
static int32_t generate(specc_model *model, int speculation, int rule, double temperature, uint64_t seed,
    int32_t *out, specc_stats *stats) {
  static const int32_t prompt[] = {5, 6, 7, 5, 6, 7, 5, 6};
  specc_session *session = NULL;
  specc_request r;
  int32_t n_prompt = 0, n = 0;
  EXPECT_OK(specc_session_create(model, &session));
  specc_request_default(&r);
  r.speculation = speculation, r.rule = rule, r.options.temperature = temperature, r.seeded = 1,
  r.seed = seed, r.max_new_tokens = 20, r.ignore_eos = 1;
  r.options.top_k = 12;
  EXPECT_OK(specc_session_start(session, &r, prompt, 8));
  EXPECT_OK(specc_session_run(session, NULL, NULL));
  const int32_t *tokens = specc_session_tokens(session, &n_prompt, &n);
  memcpy(out, tokens, (size_t)n * sizeof *out);
  specc_session_stats(session, stats);
  specc_session_free(session);
  return n;
}

static void test_whole(int32_t cache_type, int32_t rows_out, const char *integrated) {
  setenv("STUB_CUDA_INTEGRATED", integrated, 1);
  stub_plan plan = good_plan(cache_type, rows_out);
  specc_backend backend;
  if (!EXPECT_OK(open_backend(&plan, &backend))) return;
  EXPECT(!strcmp(backend.device, "Stub GPU") && strlen(backend.fingerprint) == 64 &&
         !strcmp(backend.version, version));
  specc_model *model = make_model(&backend);
  specc_certificate certificate;
  EXPECT_OK(certify(model, &certificate));
  EXPECT(certificate.kind == SPECC_CERT_BIT_EXACT && certificate.rows_compared > 200);
  for (int32_t i = 0; i < 5; i++) EXPECT(certificate.width_class[i] == 0);
  EXPECT_OK(specc_model_set_certificate(model, &certificate));
  int64_t proposed = 0, accepted = 0;
  for (int rule = 0; rule < 2; rule++)
    for (uint64_t seed = 0; seed < 6; seed++) {
      int32_t plain[64], spec[64];
      specc_stats a, b;
      double temperature = rule ? 0.7 : 0;
      int32_t n = generate(model, 0, rule, temperature, seed, plain, &a),
              m = generate(model, 1, rule, temperature, seed, spec, &b);
      EXPECT(n == m && n == 28 && !memcmp(plain, spec, (size_t)n * sizeof *plain));
      EXPECT(b.enabled);
      proposed += b.proposed, accepted += b.accepted;
    }
  EXPECT(proposed > 50 && accepted > 0);
  specc_model_free(model);
}

/* specc_judge.fatbin beside the library: the stub takes any bytes for it. Gives its path if it was made. */
static const char *make_kernels(void) {
  static char kernels[4096];
  Dl_info self;
  if (!dladdr((void *)(uintptr_t)&specc_version, &self)) return NULL;
  snprintf(kernels, sizeof kernels, "%.*s/specc_judge.fatbin",
      (int)(strrchr(self.dli_fname, '/') - self.dli_fname), self.dli_fname);
  if (!access(kernels, F_OK)) return "";
  FILE *file = fopen(kernels, "wb");
  fputs("stand-in", file);
  fclose(file);
  return kernels;
}

static int32_t many(specc_model *model, int32_t which, int32_t *out) {
  static const int32_t prompt[] = {5, 6, 7, 5, 6, 7, 5, 6}, bias_ids[] = {1, 40};
  static const double bias[] = {2.5, -INFINITY};
  specc_session *session = NULL;
  specc_request r;
  int32_t n_prompt, n = 0;
  EXPECT_OK(specc_session_create(model, &session));
  specc_request_default(&r);
  r.rule = which & 1,
  r.options.temperature = which & 2   ? 0.8
                          : which & 4 ? 0
                                      : 1.5,
  r.options.top_p = which & 8 ? 0.9 : 1, r.options.top_k = which & 4 ? 20 : 0;
  r.options.repetition_penalty = which & 16 ? 1.1 : 1, r.options.frequency_penalty = which & 16 ? 0.2 : 0,
  r.options.n_bias = which & 8 ? 2 : 0;
  r.options.bias_ids = bias_ids, r.options.bias_values = bias;
  r.seeded = 1, r.seed = (uint64_t)which, r.max_new_tokens = 20, r.min_new_tokens = which & 1 ? 12 : 0;
  EXPECT_OK(specc_session_start(session, &r, prompt, 8));
  EXPECT_OK(specc_session_run(session, NULL, NULL));
  const int32_t *tokens = specc_session_tokens(session, &n_prompt, &n);
  memcpy(out, tokens, (size_t)n * sizeof *out);
  specc_session_free(session);
  return n;
}

/* Rounds judged on the device give the texts that rounds judged here give, for every mixture of options. */
static void test_kernels(const char *integrated) {
  int32_t texts[2][32][64], lengths[2][32];
  stub_plan plan = good_plan(SPECC_CACHE_F16, 0);
  setenv("STUB_CUDA_INTEGRATED", integrated, 1);
  const char *made = make_kernels();
  for (int there = 1; there >= 0; there--) {
    specc_backend backend;
    if (!there && made && *made) unlink(made);
    if (!EXPECT_OK(open_backend(&plan, &backend))) return;
    EXPECT(!backend.judge == !there || (made && !*made));
    if (!there) backend.judge = NULL;
    specc_model *model = make_model(&backend);
    specc_certificate certificate;
    EXPECT_OK(certify(model, &certificate));
    EXPECT_OK(specc_model_set_certificate(model, &certificate));
    int before = count("stub_cuda_kernels");
    for (int which = 0; which < 32; which++) lengths[there][which] = many(model, which, texts[there][which]);
    EXPECT(there ? count("stub_cuda_kernels") - before > 100 : count("stub_cuda_kernels") == before);
    specc_model_free(model);
  }
  for (int which = 0; which < 32; which++)
    EXPECT(lengths[0][which] == lengths[1][which] &&
           !memcmp(texts[0][which], texts[1][which], (size_t)lengths[0][which] * sizeof(int32_t)));
}

/* An engine whose single row is another one is found, and every width that agrees is kept. */
static void test_judged(void) {
  stub_plan plan = good_plan(SPECC_CACHE_F16, 0);
  plan.fault = STUB_WIDTH_FAULT;
  specc_backend backend;
  if (!EXPECT_OK(open_backend(&plan, &backend))) return;
  specc_model *model = make_model(&backend);
  specc_certificate certificate;
  EXPECT_OK(certify(model, &certificate));
  EXPECT(certificate.width_class[0] != certificate.width_class[1] &&
         certificate.width_class[1] == certificate.width_class[4] && certificate.law_width != 1);
  specc_model_free(model);
}

/* Graphs: the first call is enqueued, later ones are launches, and a launch reads the inputs of its own call.
 */
static void test_calls(void) {
  stub_plan plan = good_plan(SPECC_CACHE_F32, 0);
  plan.hidden = 3;
  specc_backend b;
  specc_io io;
  void *cache;
  float first[VOCAB];
  if (!EXPECT_OK(open_backend(&plan, &b)) || !EXPECT_OK(b.open(b.self, &cache, &io))) return;
  int before = launches();
  for (int call = 0; call < 6; call++) {
    *io.past_len = 0, io.input_ids[0] = call < 5 ? 3 + call : 3, io.position[0] = 0, io.logit_rows[0] = 0;
    EXPECT_OK(b.run(cache, 1, 1));
    if (call == 0) memcpy(first, io.logits, sizeof first);
    EXPECT((memcmp(first, io.logits, sizeof first) == 0) == (call == 0 || call == 5));
    EXPECT(io.hidden[2] == (float)(io.input_ids[0] * 100 + 2));
  }
  EXPECT(launches() - before == 5);
  for (int i = 0; i < 16; i++) io.input_ids[i] = i, io.position[i] = i;
  io.logit_rows[0] = 9;
  EXPECT_OK(b.run(cache, 16, 1)); /* prefill: one row of logits, whichever is asked for */
  memcpy(first, io.logits, sizeof first);
  for (int i = 0; i < 16; i++) io.logit_rows[i] = i;
  EXPECT_OK(b.run(cache, 16, 16));
  EXPECT(!memcmp(first, io.logits + 9 * VOCAB, sizeof first));
  EXPECT_ERROR(b.run(cache, 4, 4), SPECC_E_ARGUMENT, "of no width");
  EXPECT_ERROR(b.run(cache, 2, 3), SPECC_E_ARGUMENT, "another number of logits");
  io.logit_rows[1] = 2;
  EXPECT_ERROR(b.run(cache, 2, 2), SPECC_E_ARGUMENT, "logits of another row");
  io.input_ids[1] = VOCAB;
  EXPECT_ERROR(b.run(cache, 2, 1), SPECC_E_ARGUMENT, "outside the vocabulary");
  io.input_ids[1] = 1, *io.past_len = 47;
  EXPECT_ERROR(b.run(cache, 2, 1), SPECC_E_ARGUMENT, "does not fit the cache");
  *io.past_len = 0, io.position[1] = 48;
  EXPECT_ERROR(b.run(cache, 2, 1), SPECC_E_ARGUMENT, "position outside");
  EXPECT_ERROR(b.poison(cache, 49, 0), SPECC_E_ARGUMENT, "outside 0..48");
  setenv("STUB_TENSORRT_FAIL", "enqueue", 1);
  io.position[1] = 1, io.logit_rows[0] = io.logit_rows[1] = 0;
  EXPECT_ERROR(b.run(cache, 2, 2), SPECC_E_ENGINE, "failed in a call of");
  unsetenv("STUB_TENSORRT_FAIL");
  EXPECT_OK(b.run(cache, 2, 2));
  b.close(cache);
  b.release(b.self);
}

/* The aliasing rule of each way of keeping the cache (R48): what lies where nothing should be read does not
 * matter. */
static void test_aliasing(int32_t cache_type, int32_t rows_out) {
  stub_plan plan = good_plan(cache_type, rows_out);
  specc_backend b;
  specc_io io;
  void *cache;
  float clean[VOCAB];
  if (!EXPECT_OK(open_backend(&plan, &b)) || !EXPECT_OK(b.open(b.self, &cache, &io))) return;
  for (int round = 0; round < 2; round++) {
    *io.past_len = 0;
    for (int i = 0; i < 5; i++) io.input_ids[i] = 10 + i, io.position[i] = i, io.logit_rows[i] = i;
    EXPECT_OK(b.run(cache, 5, 5));
    if (round) EXPECT_OK(b.poison(cache, 3, NAN)); /* rollback to 3, canaries behind it */
    *io.past_len = 3, io.input_ids[0] = 13, io.input_ids[1] = 14, io.position[0] = 3, io.position[1] = 4;
    EXPECT_OK(b.run(cache, 2, 2));
    if (!round) memcpy(clean, io.logits + VOCAB, sizeof clean);
    EXPECT(!memcmp(clean, io.logits + VOCAB, sizeof clean));
  }
  b.close(cache);
  b.release(b.self);
}

static void test_refusals(void) {
  specc_backend b;
  specc_io io;
  void *cache;
  stub_plan plan = good_plan(SPECC_CACHE_F16, 0);
  static const struct {
    int32_t fault;
    const char *says;
  } cases[] = {{STUB_TYPE_FAULT, "tensor logit_rows is of another type"},
      {STUB_EXTRA_FAULT, "has 14 inputs and outputs, not 13"},
      {STUB_SWAP_FAULT, "takes 2 rows in profile 0, but the manifest says 1"}};
  for (int i = 0; i < 3; i++) {
    plan.fault = cases[i].fault;
    EXPECT_ERROR(open_backend(&plan, &b), SPECC_E_FORMAT, cases[i].says);
  }
  plan.fault = 0, plan.magic = 1;
  EXPECT_ERROR(open_backend(&plan, &b), SPECC_E_FORMAT, "refused specc-plan");
  EXPECT_ERROR(open_backend(&plan, &b), SPECC_E_FORMAT, "(Magic tag does not match)");
  plan = good_plan(SPECC_CACHE_F16, 0);
  setenv("STUB_CUDA_FREE_MB", "512", 1), setenv("STUB_CUDA_INTEGRATED", "0", 1);
  EXPECT_ERROR(open_backend(&plan, &b), SPECC_E_MEMORY, "the engine needs");
  unsetenv("STUB_CUDA_FREE_MB");
  if (!EXPECT_OK(open_backend(&plan, &b))) return;
  setenv("STUB_TENSORRT_FAIL", "context", 1);
  EXPECT_ERROR(b.open(b.self, &cache, &io), SPECC_E_ENGINE, "could not make a context");
  unsetenv("STUB_TENSORRT_FAIL");
  b.release(b.self);
}

int main(void) {
  library = getenv("STUB_TENSORRT");
  if (!library || !specc_tensorrt_headers())
    return printf("compiled without TensorRT's headers (TENSORRT_INCLUDE)\n"), SKIP;
  setenv("STUB_CUDA_SM", "87", 1), setenv("STUB_CUDA_INTEGRATED", "0", 1);
  close(mkstemp(path));
  EXPECT_OK(specc_tensorrt_version(library, is_rtx(), version, sizeof version));
  test_whole(SPECC_CACHE_F16, 0, "0");
  test_whole(SPECC_CACHE_F32, 0, "1");
  test_whole(SPECC_CACHE_BF16, 1, "0");
  test_whole(SPECC_CACHE_F16, 1, "1");
  test_whole(SPECC_CACHE_F8, 1, "0");
  test_kernels("0");
  test_kernels("1");
  test_judged();
  test_calls();
  test_aliasing(SPECC_CACHE_F16, 0);
  test_aliasing(SPECC_CACHE_F16, 1);
  test_aliasing(SPECC_CACHE_F8, 1);
  test_refusals();
  EXPECT(count("stub_cuda_allocations") == 0); /* nothing leaks on the device */
  printf("%d calls were launches of graphs, %d of the row kernels\n", launches(), count("stub_cuda_kernels"));
  unlink(path);
  return failures != 0;
}
