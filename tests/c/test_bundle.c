/* test_bundle.c - opening a bundle: what is refused and with which sentence; certificates written, found,
 * ignored. SPECC_ENGINE_LIBRARY names libonnxruntime; without it only the refusals that come before the
 * engine are tested. */
#include "core/io/sha256.h"
#include "core/model/model.h"
#include "expect.h"
#include "tiny_bundle.h"
#include <sys/stat.h>
#include <unistd.h>
#include <utime.h>

static const char *library;

/* ------------------------------------------------------------------ opening */
static int open_with(const char *certificates, int trust, specc_model **model) {
  specc_open_options o = {.folder = folder,
      .engine_library = library ? library : "/nowhere/lib.so",
      .certificates = certificates,
      .trust = trust};
  return specc_model_open(&o, model);
}

static int open_bundle(int trust, specc_model **model) {
  return open_with(at("more"), trust, model);
}

static int find_open_error(void) {
  specc_model *model = NULL;
  int code = open_bundle(0, &model);
  if (!code) specc_model_free(model);
  return code;
}

/* ------------------------------------------------------------------ refusals */
static void test_manifest(void) {
  static const struct {
    const char *from, *to, *says;
    int code;
  } cases[] = {{"\"format\": 1", "\"format\": 2", "has format 2, but this library reads formats up to 1",
                   SPECC_E_FORMAT},
      {"\"format\": 1", "\"format\": \"1\"", "manifest.format", SPECC_E_FORMAT},
      {"\"format\": 1,", "", "manifest.format", SPECC_E_FORMAT},
      {"\"k\": 4", "\"k\": 17", "plan.k in manifest.json is not a whole number from 1 to 16", SPECC_E_FORMAT},
      {"\"k\": 4", "\"k\": 4.5", "plan.k", SPECC_E_FORMAT},
      {"\"context\": 64", "\"context\": 65", "engines.target.capacity", SPECC_E_FORMAT},
      {"\"target.onnx\", \"bytes\"", "\"/etc/passwd\", \"bytes\"", "outside the bundle", SPECC_E_FORMAT},
      {"\"target.onnx\", \"bytes\"", "\"a/../../b\", \"bytes\"", "outside the bundle", SPECC_E_FORMAT},
      {"\"target.onnx\", \"bytes\"", "\"..\", \"bytes\"", "outside the bundle", SPECC_E_FORMAT},
      {"\"target.onnx\", \"bytes\"", "\"gone\", \"bytes\"", "gone cannot be read", SPECC_E_IO},
      {"\"file\": \"target.onnx\"", "\"file\": \"other.onnx\"", "does not list it", SPECC_E_FORMAT},
      {"\"backend\": \"ort\"", "\"backend\": \"metal\"", "needs the backend metal", SPECC_E_UNSUPPORTED},
      {"\"backend\": \"ort\"", "\"backend\": \"tensorrt\"", "engines.target.tensorrt", SPECC_E_FORMAT},
      {"\"backend\": \"ort\"", "\"finalize\": true, \"backend\": \"ort\"", "run `specc finalize",
          SPECC_E_UNSUPPORTED},
      {"\"vocab\": 50", "\"vocab\": 47", "engines.target.vocab", SPECC_E_FORMAT},
      {"[1, 2, 3, 5, 16]", "[1, 2, 2]", "widths", SPECC_E_FORMAT},
      {"\"ids\": 48", "\"ids\": 49", "holds 48 ids, but the manifest's tokenizer has 49", SPECC_E_FORMAT},
      {"\"eos\": [2, 3]", "\"eos\": [48]", "tokenizer.eos", SPECC_E_FORMAT},
      {"\"tokenizer\"", "\"tokeniser\"", "manifest.tokenizer", SPECC_E_FORMAT},
      {"{\n", "{,", "line 1", SPECC_E_FORMAT}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_manifest(cases[i].from, cases[i].to);
    EXPECT_ERROR(find_open_error(), cases[i].code, cases[i].says);
  }
  unlink(at("manifest.json"));
  EXPECT_ERROR(find_open_error(), SPECC_E_IO, "manifest.json cannot be read");
  specc_model *model;
  EXPECT_ERROR(specc_model_open(NULL, &model), SPECC_E_ARGUMENT, "folder");
}

/* A changed or an additional byte in any file: the error names the file. */
static void test_changed_bytes(void) {
  static const char *const names[] = {"target.onnx", "target.onnx.data", "id_bytes.bin", "manifest.json"};
  write_manifest(NULL, NULL);
  for (int i = 0; i < 4; i++) {
    size_t n;
    char *data = read_text(at(names[i]), &n), says[64];
    snprintf(says, sizeof says, i < 3 ? "%s was changed" : "%s", names[i]);
    data[n / 2] ^= 1;
    write_bytes(at(names[i]), data, n);
    EXPECT_ERROR(find_open_error(), SPECC_E_FORMAT, says);
    data[n / 2] ^= 1;
    write_bytes(at(names[i]), data, n + 1);
    EXPECT_ERROR(find_open_error(), SPECC_E_FORMAT, i < 3 ? "bytes, but the manifest says" : "manifest.json");
    write_bytes(at(names[i]), data, n);
  }
}

/* ------------------------------------------------------------------ certificates */
static specc_model_info get_info(specc_model *model) {
  specc_model_info info = {0};
  EXPECT_OK(specc_model_info_get(model, &info));
  return info;
}

/* The certificate that the bundle opens with: 1 if one of the folder was put in force. */
static int find_certificate(const char *certificates, specc_certificate *c) {
  specc_model *model = NULL;
  if (!EXPECT_OK(open_with(certificates, 1, &model))) return -1;
  *c = get_info(model).certificate;
  specc_model_free(model);
  return c->kind != SPECC_CERT_NONE;
}

static specc_certificate make_exact_certificate(const specc_model *model) {
  specc_certificate c = {.kind = SPECC_CERT_BIT_EXACT,
      .law_width = 2,
      .n_widths = 5,
      .width_class = {0, 1, 1, 1, -1},
      .threads = 1,
      .k = 4,
      .max_abs_diff = {0.1, 0, 0, 0, 1e308 * 10},
      .call_ms = {1, 2, 3, 4, 5.5},
      .draft_ms = 0.25,
      .rows_compared = 1000,
      .rows_different = {7},
      .calls = 123,
      .law_hash = 0xfedcba9876543210u,
      .tv_rows = 9,
      .flips = 2,
      .flip_margin = 0.5,
      .evidence = "a \"quoted\" word"};
  memcpy(c.widths, model->target.widths, sizeof c.widths);
  return c;
}

static void test_certificates(void) {
  specc_model *model = NULL;
  char path[256], hard[64] = "{\"note\": \"\\u00e9\"}";
  write_manifest(NULL, NULL);
  if (!EXPECT_OK(open_bundle(0, &model))) return;
  specc_model_info info = get_info(model);
  EXPECT(!info.enabled && info.reasons == SPECC_R_UNCERTIFIED_DEVICE && info.n_ids == 48 &&
         info.vocab == VOCAB && info.context == 64);
  EXPECT(!strcmp(info.engine_sha256, ZEROS) && strlen(info.digest) == 64 && info.n_eos == 2 &&
         info.eos[1] == 3 && info.threads == 1);
  EXPECT(
      !strcmp(info.backend, "ort") && model->strip_leading_space && model->bytes[model->offsets[7]] == '7');
  specc_certificate c = make_exact_certificate(model), read;
  EXPECT_ERROR(specc_certificate_save(model, &c, "[1]", at("more"), path, sizeof path), SPECC_E_ARGUMENT,
      "not a JSON object");
  EXPECT_ERROR(specc_certificate_save(model, &c, "{} , \"kind\": 1", at("more"), path, sizeof path),
      SPECC_E_FORMAT, "report");
  EXPECT_ERROR(specc_certificate_save(model, &c, NULL, "/proc/nowhere", path, sizeof path), SPECC_E_IO,
      "cannot be written");
  EXPECT_OK(specc_certificate_save(model, &c, hard, at("more"), path, sizeof path));
  memset(&read, 0, sizeof read);
  EXPECT(find_certificate(at("more"), &read) == 1);
  EXPECT(read.kind == c.kind && read.law_width == 2 && read.k == 4 && read.threads == 1 &&
         read.law_hash == c.law_hash && read.calls == 123);
  EXPECT(read.width_class[1] == read.width_class[3] && read.width_class[0] != read.width_class[1] &&
         read.width_class[4] == -1);
  EXPECT(!memcmp(read.max_abs_diff, c.max_abs_diff, sizeof c.max_abs_diff) &&
         !memcmp(read.call_ms, c.call_ms, sizeof c.call_ms) && read.draft_ms == 0.25);
  EXPECT(read.rows_different[0] == 7 && read.rows_compared == 1000 && read.tv_max == 0);
  EXPECT(
      read.tv_rows == 9 && read.flips == 2 && read.flip_margin == 0.5 && !strcmp(read.evidence, c.evidence));
  specc_model_free(model);
  if (!EXPECT_OK(open_bundle(1, &model))) return;
  info = get_info(model);
  EXPECT(info.enabled && info.certificate.kind == SPECC_CERT_BIT_EXACT && info.certificate.law_width == 2);
  specc_model_free(model);
}

/* Puts the certificate with one change, sealed anew or not, into a folder of its own and looks for it. */
static int find_changed(const char *text, const char *from, const char *to, bool sealed) {
  static char changed[1 << 16];
  specc_certificate c;
  const char *found = strstr(text, from);
  if (!found) return -1;
  snprintf(changed, sizeof changed, "%.*s%s%s", (int)(found - text), text, to, found + strlen(from));
  char *seal = strstr(changed, "\"seal\": \""), hex[65];
  if (seal && sealed) {
    memcpy(seal + 9, ZEROS, 64);
    hash(changed, strlen(changed), hex);
    memcpy(seal + 9, hex, 64);
  }
  write_bytes(at("changed/x.json"), changed, strlen(changed));
  return find_certificate(at("changed"), &c);
}

/* Whether the note about the changed file holds `says`. */
static bool has_note(const specc_model *model, const char *says) {
  char note[512];
  int fits = specc_certificate_explain(model, at("changed/x.json"), note, sizeof note);
  bool said = strstr(note, says) != NULL;
  if (!said) fprintf(stderr, "  the note is: %s\n", note);
  return said && fits == !strcmp(says, "it is for this engine");
}

static void test_notes(const specc_model *model, const char *text) {
  static const struct {
    const char *from, *to, *says;
    bool sealed;
  } cases[] = {{"\"k\": 4", "\"k\": 4", "it is for this engine", true},
      {"\"k\": 4", "\"k\": 3", "its seal does not fit", false},
      {"\"reasons\": []", "\"reasons\": [ ]", "its seal does not fit", false},
      {"bit-exact", "bounded", "its seal does not fit", false},
      {"\"engine_sha256\": \"0", "\"engine_sha256\": \"1", "another engine file", true},
      {"\"digest\": \"", "\"digest\": \"x", "another bundle", true},
      {"\"backend_version\": \"1", "\"backend_version\": \"2", "another version", true},
      {"\"fingerprint\": \"", "\"fingerprint\": \"0", "another machine", true},
      {"\"threads\": 1", "\"threads\": 2", "another thread count", true},
      {"\"format\": 2", "\"format\": 3", "newer format", true},
      {"\"format\": 2", "\"format\": 1", "a format without a seal", true},
      {"\"law_width\": 2", "\"law_width\": 4", "a value in it", true}, {"}\n", "", "not whole JSON", true},
      {"\"seal\"", "\"sealed\"", "its seal does not fit", false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    find_changed(text, cases[i].from, cases[i].to, cases[i].sealed);
    EXPECT(has_note(model, cases[i].says));
  }
  unlink(at("changed/x.json"));
  EXPECT(has_note(model, "cannot be read"));
}

/* A temporary file of a gate that was killed is never read, and the next save removes it if it is old. */
static void test_leftover_files(specc_model *model, const char *text) {
  specc_certificate c = make_exact_certificate(model);
  char path[256];
  write_bytes(at("changed/.certificate-abcdef"), text, strlen(text));
  EXPECT(find_certificate(at("changed"), &c) == 0);
  struct utimbuf old = {1, 1};
  EXPECT(!utime(at("changed/.certificate-abcdef"), &old));
  write_bytes(at("changed/.certificate-young"), "x", 1);
  c = make_exact_certificate(model);
  EXPECT_OK(specc_certificate_save(model, &c, NULL, at("changed"), path, sizeof path));
  EXPECT(access(at("changed/.certificate-abcdef"), F_OK) && !access(at("changed/.certificate-young"), F_OK));
}

static void test_ignored_certificates(void) {
  static const char *const changes[][2] = {{"\"format\": 2", "\"format\": 3"},
      {"\"backend\": \"ort\"", "\"backend\": \"o\""}, {"\"threads\": 1", "\"threads\": 2"},
      {"\"fingerprint\": \"", "\"fingerprint\": \"0"}, {"\"engine_sha256\": \"0", "\"engine_sha256\": \"1"},
      {"\"digest\": \"", "\"digest\": \"x"}, {"\"backend_version\": \"1", "\"backend_version\": \"2"},
      {"bit-exact", "exact"}, {"[[2, 3, 5], [1]]", "[[2, 3], [1]]"},
      {"[[2, 3, 5], [1]]", "[[2, 3, 5, 6], [1]]"}, {"[[2, 3, 5], [1]]", "[[2, 3, 5], [1, 2]]"},
      {"\"law_width\": 2", "\"law_width\": 4"}, {"\"k\": 4", "\"k\": 17"},
      {"\"reasons\": []", "\"reasons\": [\"unheard-of\"]"}, {"\"tv_mean\": 0", "\"tv_mean\": -1"},
      {"\"law_hash\": \"f", "\"law_hash\": \"g"}, {"\"call_ms\": [1, ", "\"call_ms\": ["},
      {"\"calls\": 123", "\"calls\": \"123\""}, {"}\n", ""}};
  specc_model *model = NULL;
  specc_certificate c;
  char path[256];
  size_t n;
  if (!EXPECT_OK(open_bundle(0, &model))) return;
  c = make_exact_certificate(model);
  EXPECT_OK(specc_certificate_save(model, &c, NULL, at("saved"), path, sizeof path));
  char *text = strdup(read_text(path, &n));
  mkdir(at("changed"), 0777);
  EXPECT(find_changed(text, "\"k\": 4", "\"k\": 3", true) == 1);
  EXPECT(find_changed(text, "\"k\": 4", "\"k\": 3", false) == 0);
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
    if (!EXPECT(find_changed(text, changes[i][0], changes[i][1], true) == 0))
      fprintf(stderr, "  %s -> %s\n", changes[i][0], changes[i][1]);
  EXPECT(find_certificate(at("nothing"), &c) == 0);
  test_notes(model, text);
  test_leftover_files(model, text);
  free(text);
  specc_model_free(model);
}

/* Lint stays a reason whatever a certificate says; the other drafters open. */
static void test_kinds(void) {
  static const char *const kinds[] = {
      "\"kind\": \"none\"", "\"kind\": \"model\"", "\"kind\": \"early-exit\""};
  specc_model *model = NULL;
  char path[256];
  for (int i = 0; i < 3; i++) {
    write_manifest("\"kind\": \"ngram\"", kinds[i]);
    if (!EXPECT_OK(open_bundle(0, &model))) continue;
    EXPECT(!strcmp(get_info(model).drafter, i ? "model" : ""));
    specc_model_free(model);
  }
  write_manifest("\"kind\": \"ngram\"", "\"kind\": \"oracle\"");
  EXPECT_ERROR(find_open_error(), SPECC_E_FORMAT, "draft.kind");
  write_manifest("\"passed\": true", "\"passed\": false");
  if (!EXPECT_OK(open_bundle(0, &model))) return;
  EXPECT(get_info(model).reasons == (SPECC_R_LINT | SPECC_R_UNCERTIFIED_DEVICE));
  specc_certificate c = make_exact_certificate(model);
  EXPECT_OK(specc_certificate_save(model, &c, NULL, at("certificates"), path, sizeof path));
  specc_model_free(model);
  if (!EXPECT_OK(open_bundle(0, &model))) return;
  EXPECT(get_info(model).reasons == SPECC_R_LINT && !get_info(model).enabled);
  specc_model_free(model);
}

int main(void) {
  char clean[80];
  library = getenv("SPECC_ENGINE_LIBRARY");
  if (!mkdtemp(folder)) return 1;
  weights *w = make_weights();
  write_graph(at("target.onnx"), w, (variant){0});
  free(w);
  write_table(48);
  test_manifest();
  test_changed_bytes();
  if (library) test_certificates();
  if (library) test_ignored_certificates();
  if (library) test_kinds();
  snprintf(clean, sizeof clean, "rm -r %s", folder);
  EXPECT(system(clean) == 0);
  return library || failures
             ? finish("test_bundle")
             : (printf("test_bundle: engine part skipped, SPECC_ENGINE_LIBRARY is not set\n"), SKIP);
}
