/* test_core.c - arithmetic, distributions, the loop on table engines, the certificate. No engine library
 * needed. */
#include "expect.h"
#include <math.h>

static uint32_t state = 1;
static double uniform(void) {
  state = state * 1664525u + 1013904223u;
  return (state >> 8) / 16777216.0;
}

/* Random123's known answers for philox4x32-10. */
static void test_philox(void) {
  const uint32_t zero[4] = {0}, ones[4] = {~0u, ~0u, ~0u, ~0u},
                 digits[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
  const uint32_t a[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                 b[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  const uint32_t c[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  uint32_t out[4];
  specc_philox(0, zero, out);
  EXPECT(!memcmp(out, a, sizeof out));
  specc_philox(~0ull, ones, out);
  EXPECT(!memcmp(out, b, sizeof out));
  specc_philox(0x299f31d0a4093822ull, digits, out);
  EXPECT(!memcmp(out, c, sizeof out));
}

static void test_polynomials(void) {
  for (int i = 0; i < 200000; i++) {
    double x = -700 * uniform(), y = exp(40 * uniform() - 20);
    EXPECT(fabs(specc_exp(x) / exp(x) - 1) < 1e-15);
    EXPECT(fabs(specc_log(y) - log(y)) <= 1e-15 * (1 + fabs(log(y))));
  }
  EXPECT(specc_exp(0) == 1 && specc_exp(-INFINITY) == 0 && specc_log(1) == 0 && specc_log(0) == -INFINITY &&
         isnan(specc_log(-1)));
  EXPECT(fabs(specc_log(5e-324) + 744.4400719213812) < 1e-9 && fabs(specc_exp(5) / exp(5) - 1) < 1e-15);
}

static void test_filters(void) {
  specc_request r;
  double p[4];
  const float logits[4] = {logf(.5f), logf(.3f), logf(.1f), logf(.1f)};
  specc_request_default(&r);
  EXPECT(!specc_distribution(&r.options, logits, 4, 4, NULL, 0, 0, p) && fabs(p[0] - .5) < 1e-7 &&
         fabs(p[3] - .1) < 1e-7);
  r.options.top_k = 3; /* a tie at the third place keeps the lower id */
  EXPECT(!specc_distribution(&r.options, logits, 4, 4, NULL, 0, 0, p) && p[2] > 0 && p[3] == 0);
  r.options.top_k = 0;
  r.options.top_p = 0.7;
  EXPECT(!specc_distribution(&r.options, logits, 4, 4, NULL, 0, 0, p) && p[1] > 0 && p[2] == 0);
  r.options.top_p = 1;
  r.options.min_p = 0.5;
  EXPECT(!specc_distribution(&r.options, logits, 4, 4, NULL, 0, 0, p) && p[1] > 0 && p[2] == 0);
  r.options.min_p = 0;
  r.options.temperature = 0;
  EXPECT(!specc_distribution(&r.options, logits, 4, 4, NULL, 0, 0, p) && p[0] == 1);
  float bad[4] = {0, NAN, 0, 0};
  EXPECT(specc_distribution(&r.options, bad, 4, 4, NULL, 0, 0, p) == SPECC_E_NUMERICS);
}

enum { N = 12, CONTEXT = 96, K = 4 };
static float target_table[N * N][N], draft_table[N * N][N];

/* 1: lookup; 2: a table engine; 3: that engine as the middle model, sped up by lookup and an engine of order
 * 1 in a chain. */
static void make_drafter(int draft, specc_backend *engine, const int32_t *widths, specc_drafter *drafter) {
  specc_backend smallest;
  specc_drafter stages[2], chain;
  if (draft != 3) {
    EXPECT(draft == 2 ? !specc_model_drafter(engine, drafter) : !specc_ngram_drafter(1, 3, drafter));
    if (draft != 2) engine->release(engine->self);
    return;
  }
  EXPECT(!specc_table_backend(&target_table[0][0], N, N, 1, CONTEXT + 8, widths, 6, &smallest));
  EXPECT(!specc_ngram_drafter(2, 3, &stages[0]) && !specc_model_drafter(&smallest, &stages[1]));
  EXPECT(!specc_staged_drafter(stages, 2, &chain));
  specc_hierarchy_options o = {.middle = engine, .small = &chain, .n_ids = N, .k = 3};
  EXPECT(!specc_hierarchy_drafter(&o, drafter));
}

static specc_model *make_model(int order, int draft, int exact) {
  const int32_t widths[] = {1, 2, 3, 4, 5, 8}, eos[] = {N - 1};
  specc_backend target, engine;
  specc_drafter drafter;
  specc_model *m;
  for (int i = 0; i < N * N; i++)
    for (int j = 0; j < N; j++) {
      target_table[i][j] = (float)(3 * uniform());
      draft_table[i][j] = target_table[i][j] + (float)uniform();
    }
  EXPECT(!specc_table_backend(&target_table[0][0], N, N, order, CONTEXT + 8, widths, 6, &target));
  EXPECT(!specc_table_backend(&draft_table[0][0], N, N, order, CONTEXT + 8, widths, 6, &engine));
  make_drafter(draft, &engine, widths, &drafter);
  specc_model_parts parts = {.target = &target,
      .drafter = draft ? &drafter : NULL,
      .n_ids = N,
      .context = CONTEXT,
      .k_max = K,
      .n_eos = 1,
      .eos = eos,
      .assume_exact = exact};
  EXPECT(!specc_model_create(&parts, &m));
  return m;
}

static int32_t generate(
    specc_session *s, int rule, double temperature, int speculation, int k, int32_t *out) {
  const int32_t prompt[] = {3, 1, 4, 1, 5};
  specc_request r;
  int32_t n_prompt, n;
  specc_request_default(&r);
  r.options.temperature = temperature;
  r.rule = rule;
  r.speculation = speculation;
  r.k = k;
  r.seeded = 1;
  r.seed = 7;
  r.ignore_eos = 1;
  r.max_new_tokens = 1000;
  EXPECT(!specc_session_start(s, &r, prompt, 5));
  EXPECT(!specc_session_run(s, NULL, NULL));
  memcpy(out, specc_session_tokens(s, &n_prompt, &n), CONTEXT * sizeof *out);
  return n;
}

/* coupled and greedy: the same ids with speculation on and off, for any K, up to the last place of the
 * context. */
static void test_equality(void) {
  for (int order = 1; order <= 2; order++)
    for (int draft = 1; draft <= 3; draft++) {
      specc_model *m = make_model(order, draft, 1);
      specc_session *s;
      int32_t plain[CONTEXT], spec[CONTEXT];
      specc_stats stats;
      EXPECT(!specc_session_create(m, &s));
      for (int t = 0; t < 3; t++) {
        EXPECT(generate(s, SPECC_RULE_COUPLED, 0.7 * t, 0, 0, plain) == CONTEXT);
        EXPECT(generate(s, SPECC_RULE_REJECTION, 0.7 * t, 1, K, spec) == CONTEXT);
        for (int k = 1; k <= K; k++) {
          EXPECT(generate(s, SPECC_RULE_COUPLED, 0.7 * t, 1, k, spec) == CONTEXT);
          EXPECT(!memcmp(plain, spec, sizeof plain));
          EXPECT(!specc_session_stats(s, &stats) && stats.enabled && stats.rounds_proposing > 0);
        }
      }
      specc_session_free(s);
      specc_model_free(m);
    }
}

static void test_certificate(void) {
  int32_t text[64];
  specc_certificate c;
  specc_model *m = make_model(2, 2, 0);
  specc_model_info info;
  for (int i = 0; i < 64; i++) text[i] = (int32_t)(uniform() * N);
  EXPECT(!specc_model_info_get(m, &info) && !info.enabled && info.reasons == SPECC_R_UNCERTIFIED_DEVICE);
  specc_certify_options o = {.tokens = text, .n_tokens = 64, .seed = 1};
  EXPECT(!specc_certify(m, &o, &c));
  EXPECT(c.kind == SPECC_CERT_BIT_EXACT && c.rows_compared > 1000 && !c.reasons);
  for (int i = 0; i < c.n_widths; i++) EXPECT(c.width_class[i] == 0 && !c.rows_different[i]);
  EXPECT(!specc_model_set_certificate(m, &c) && !specc_model_info_get(m, &info) && info.enabled);
  specc_model_free(m);
}

static void test_refusals(void) {
  specc_model *m = make_model(1, 1, 1);
  specc_session *s;
  specc_request r;
  specc_event e;
  const int32_t prompt[] = {1}, wrong[] = {N};
  EXPECT(!specc_session_create(m, &s));
  specc_request_default(&r);
  EXPECT(specc_session_step(s, &e) == SPECC_E_ARGUMENT);
  EXPECT(specc_session_start(s, &r, prompt, 0) == SPECC_E_ARGUMENT);
  EXPECT(specc_session_start(s, &r, wrong, 1) == SPECC_E_ARGUMENT);
  r.options.temperature = -1;
  EXPECT(specc_session_start(s, &r, prompt, 1) == SPECC_E_ARGUMENT);
  r.options.temperature = NAN;
  EXPECT(specc_session_start(s, &r, prompt, 1) == SPECC_E_ARGUMENT);
  r.options.temperature = 1;
  r.options.top_p = 0;
  EXPECT(specc_session_start(s, &r, prompt, 1) == SPECC_E_ARGUMENT);
  r.options.top_p = 1;
  r.k = K + 1;
  EXPECT(specc_session_start(s, &r, prompt, 1) == SPECC_E_ARGUMENT);
  r.k = 0;
  r.max_new_tokens = 0;
  EXPECT(!specc_session_start(s, &r, prompt, 1) && !specc_session_step(s, &e) &&
         e.finished == SPECC_FINISH_LENGTH && e.n_tokens == 0);
  specc_session_free(s);
  specc_model_free(m);
}

/* Values that a careless caller hands to the pure parts and to certificates. */
static void test_more_refusals(void) {
  specc_model *m = make_model(1, 1, 1);
  specc_session *s;
  specc_request r;
  specc_model_info info;
  const float logits[4] = {0, 1, 2, 3};
  const int32_t prompt[] = {1, 2}, far[] = {100000}, below[] = {-3000};
  const double one[] = {1};
  double p[4];
  EXPECT(!specc_model_info_get(m, &info));
  specc_certificate c = info.certificate;
  c.k = 100000;
  EXPECT(specc_model_set_certificate(m, &c) == SPECC_E_ARGUMENT);
  c.k = 0;
  c.kind = 77;
  EXPECT(specc_model_set_certificate(m, &c) == SPECC_E_ARGUMENT);
  c.kind = SPECC_CERT_BOUNDED;
  c.law_width = 1000;
  EXPECT(specc_model_set_certificate(m, &c) == SPECC_E_ARGUMENT);
  specc_request_default(&r);
  EXPECT(specc_distribution(&r.options, logits, 4, 4, far, 1, 0, p) == SPECC_E_ARGUMENT);
  EXPECT(specc_distribution(&r.options, logits, 4, 4, NULL, 2, 0, p) == SPECC_E_ARGUMENT);
  r.options.n_bias = 1;
  r.options.bias_ids = below;
  r.options.bias_values = one;
  EXPECT(specc_distribution(&r.options, logits, 4, 4, NULL, 0, 0, p) == SPECC_E_ARGUMENT);
  r.options.n_bias = 0;
  r.options.temperature = -1;
  EXPECT(specc_distribution(&r.options, logits, 4, 4, NULL, 0, 0, p) == SPECC_E_ARGUMENT);
  r.options.temperature = 1;
  r.options.repetition_penalty = 1e-310;
  EXPECT(!specc_session_create(m, &s));
  for (int rule = 0; rule < 2; rule++) {
    r.rule = rule;
    EXPECT(!specc_session_start(s, &r, prompt, 2) && specc_session_run(s, NULL, NULL) == SPECC_E_NUMERICS);
  }
  specc_session_free(s);
  specc_model_free(m);
}

int main(void) {
  test_philox();
  test_polynomials();
  test_filters();
  test_equality();
  test_certificate();
  test_refusals();
  test_more_refusals();
  return finish("core");
}
