/* test_certify.c - a program with nothing but libspecc and an engine library: opens a bundle that no gate has
 * seen, certifies it, saves the certificate, opens it again, and speculates with the text of plain decoding.
 * SPECC_ENGINE_LIBRARY names libonnxruntime. */
#include "core/io/sha256.h"
#include "expect.h"
#include "tiny_bundle.h"
#include <unistd.h>

static const char *library;

static int open_tiny(specc_model **model) {
  specc_open_options o = {.folder = folder, .engine_library = library};
  return specc_model_open(&o, model);
}

static int cancel(void *user, int64_t done, int64_t total) {
  int64_t *left = user;
  return total < 1 || done > total || (*left)-- <= 0;
}

/* Ids of a generation; the number of rounds that proposed. */
static int64_t generate(specc_model *model, int speculation, int rule, int32_t out[40]) {
  static const int32_t prompt[] = {5, 6, 7, 8, 5, 6, 7, 8, 5, 6};
  specc_session *session;
  specc_request request;
  specc_stats stats = {0};
  specc_request_default(&request);
  request.speculation = speculation, request.rule = rule, request.seeded = 1, request.seed = 7;
  request.max_new_tokens = 40, request.ignore_eos = 1;
  if (!EXPECT_OK(specc_session_create(model, &session))) return -1;
  EXPECT_OK(specc_session_start(session, &request, prompt, 10));
  EXPECT_OK(specc_session_run(session, NULL, NULL));
  int32_t before = 0, all = 0;
  const int32_t *tokens = specc_session_tokens(session, &before, &all);
  EXPECT(all - before == 40);
  memcpy(out, tokens + before, 40 * sizeof *out);
  EXPECT_OK(specc_session_stats(session, &stats));
  specc_session_free(session);
  return stats.rounds_proposing;
}

static void test_certified(specc_model *model) {
  int32_t on[40], off[40];
  EXPECT(generate(model, 1, SPECC_RULE_COUPLED, on) > 0);
  EXPECT(generate(model, 0, SPECC_RULE_COUPLED, off) == 0);
  EXPECT(!memcmp(on, off, sizeof on));
}

int main(void) {
  char clean[80], path[256];
  int32_t text[200];
  int64_t calls = 40;
  specc_model *model = NULL;
  specc_model_info info;
  specc_certificate c;
  library = getenv("SPECC_ENGINE_LIBRARY");
  if (!library) return printf("test_certify: skipped, SPECC_ENGINE_LIBRARY is not set\n"), SKIP;
  if (!mkdtemp(folder)) return 1;
  weights *w = make_weights();
  write_graph(at("target.onnx"), w, (variant){0});
  free(w);
  write_table(48);
  write_manifest(NULL, NULL);
  for (int i = 0; i < 200; i++) text[i] = (11 * i * i + 5 * i + 3) % 48;
  specc_certify_options o = {.tokens = text, .n_tokens = 200, .seed = 3, .progress = cancel, .user = &calls};
  if (!EXPECT_OK(open_tiny(&model))) return finish("test_certify");
  EXPECT_OK(specc_model_info_get(model, &info));
  EXPECT(!info.enabled && info.reasons == SPECC_R_UNCERTIFIED_DEVICE);
  EXPECT_ERROR(specc_certify(model, &o, &c), SPECC_E_BUSY, "the old one stays in force");
  calls = INT64_MAX;
  EXPECT_OK(specc_certify(model, &o, &c));
  EXPECT(c.kind == SPECC_CERT_BIT_EXACT && !c.reasons && c.rows_compared > 1000 && !c.unrepeatable);
  EXPECT_OK(specc_certificate_save(model, &c, NULL, at("certificates"), path, sizeof path));
  specc_model_free(model);
  if (EXPECT_OK(open_tiny(&model))) {
    EXPECT_OK(specc_model_info_get(model, &info));
    EXPECT(
        info.enabled && info.certificate.law_hash == c.law_hash && info.certificate.law_width == c.law_width);
    test_certified(model);
    specc_model_free(model);
  }
  snprintf(clean, sizeof clean, "rm -r %s", folder);
  EXPECT(system(clean) == 0);
  return finish("test_certify");
}
