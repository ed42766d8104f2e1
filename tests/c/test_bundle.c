/* test_bundle.c - opening a bundle: what is refused and how it is said; certificates written, found, passed over.
 * SPECC_ENGINE_LIBRARY names libonnxruntime; without it only the refusals that come before the engine are tested. */
#include "internal.h"
#include "expect.h"
#include "tiny_graph.h"
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/specc-test-XXXXXX";
static const char *library;

/* ------------------------------------------------------------------ a small bundle */
static char *at(const char *name) {
  static char paths[4][256];
  static int turn;
  char *path = paths[turn++ % 4];
  snprintf(path, 256, "%s/%s", folder, name);
  return path;
}

static char *read_text(const char *path, size_t *n) {
  static char text[1 << 18];
  FILE *f = fopen(path, "rb");
  *n = f ? fread(text, 1, sizeof text - 1, f) : 0;
  text[*n] = 0;
  if (f) fclose(f);
  return text;
}

static void hash(const void *data, size_t n, char hex[65]) {
  specc_sha256 h;
  specc_sha256_begin(&h);
  specc_sha256_add(&h, data, n);
  specc_sha256_end(&h, hex);
}

static void write_table(int n) {
  unsigned char table[16 + 5 * VOCAB] = "SPCB\1";
  table[8] = (unsigned char)n;
  for (int i = 0; i <= n; i++) table[12 + 4 * i] = (unsigned char)i;
  for (int i = 0; i < n; i++) table[16 + 4 * n + i] = (unsigned char)('0' + i);
  write_bytes(at("id_bytes.bin"), table, (size_t)(16 + 5 * n));
}

static void describe_files(char *out, size_t n_out) {
  static const char *const names[] = { "target.onnx", "target.onnx.data", "id_bytes.bin" };
  for (int i = 0; i < 3; i++) {
    char hex[65];
    size_t n, used = strlen(out);
    const char *data = read_text(at(names[i]), &n);
    hash(data, n, hex);
    snprintf(out + used, n_out - used, "%s{\"path\": \"%s\", \"bytes\": %zu, \"sha256\": \"%s\"}", i ? ",\n  " : "", names[i], n, hex);
  }
}

#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
#define ENGINE "{\"file\": \"target.onnx\", \"backend\": \"ort\", \"sha256\": \"" ZEROS "\", \"vocab\": 50, \"layers\": 2, \"kv_heads\": 2," \
  " \"head_dim\": 16, \"capacity\": 80, \"widths\": [1, 2, 3, 5, 16]}"

/* The manifest with `from` replaced by `to`, under a right digest. */
static void write_manifest(const char *from, const char *to) {
  static char text[8192], changed[3 * 8192], files[1024];
  char hex[65];
  files[0] = 0;
  describe_files(files, sizeof files);
  snprintf(text, sizeof text,
           "{\n \"digest\": \"" ZEROS "\",\n \"format\": 1,\n \"name\": \"tiny\",\n \"files\": [%s],\n"
           " \"plan\": {\"k\": 4, \"context\": 64, \"threads\": 1},\n \"engines\": {\"target\": " ENGINE ", \"draft\": " ENGINE "},\n"
           " \"draft\": {\"kind\": \"ngram\", \"min_match\": 2, \"max_match\": 4},\n"
           " \"tokenizer\": {\"ids\": 48, \"bytes\": \"id_bytes.bin\", \"strip_leading_space\": true, \"eos\": [2, 3], \"bos\": null},\n"
           " \"lint\": {\"passed\": true, \"findings\": []}\n}\n", files);
  char *found = from ? strstr(text, from) : text;
  if (!found) abort();
  snprintf(changed, sizeof changed, "%.*s%s%s", (int)(found - text), text, from ? to : "", found + (from ? strlen(from) : 0));
  hash(changed, strlen(changed), hex);
  char *digest = strstr(changed, ZEROS);
  if (digest) memcpy(digest, hex, 64);
  write_bytes(at("manifest.json"), changed, strlen(changed));
}

static int try_with(const char *certificates, int trust, specc_model **model) {
  specc_open_options o = { .folder = folder, .engine_library = library ? library : "/nowhere/lib.so", .certificates = certificates, .trust = trust };
  return specc_model_open(&o, model);
}

static int try(int trust, specc_model **model) { return try_with(at("more"), trust, model); }

static int refused(void) {
  specc_model *model = NULL;
  int code = try(0, &model);
  if (!code) specc_model_free(model);
  return code;
}

/* ------------------------------------------------------------------ refusals */
static void test_manifest(void) {
  static const struct { const char *from, *to, *says; int code; } cases[] = {
    { "\"format\": 1", "\"format\": 2", "has format 2, but this library reads formats up to 1", SPECC_E_FORMAT },
    { "\"format\": 1", "\"format\": \"1\"", "manifest.format", SPECC_E_FORMAT }, { "\"format\": 1,", "", "manifest.format", SPECC_E_FORMAT },
    { "\"k\": 4", "\"k\": 17", "plan.k in manifest.json is not a whole number from 1 to 16", SPECC_E_FORMAT },
    { "\"k\": 4", "\"k\": 4.5", "plan.k", SPECC_E_FORMAT }, { "\"context\": 64", "\"context\": 65", "engines.target.capacity", SPECC_E_FORMAT },
    { "\"target.onnx\", \"bytes\"", "\"/etc/passwd\", \"bytes\"", "outside the bundle", SPECC_E_FORMAT },
    { "\"target.onnx\", \"bytes\"", "\"a/../../b\", \"bytes\"", "outside the bundle", SPECC_E_FORMAT },
    { "\"target.onnx\", \"bytes\"", "\"..\", \"bytes\"", "outside the bundle", SPECC_E_FORMAT },
    { "\"target.onnx\", \"bytes\"", "\"gone\", \"bytes\"", "gone cannot be read", SPECC_E_IO },
    { "\"file\": \"target.onnx\"", "\"file\": \"other.onnx\"", "does not list it", SPECC_E_FORMAT },
    { "\"backend\": \"ort\"", "\"backend\": \"metal\"", "needs the backend metal", SPECC_E_UNSUPPORTED },
    { "\"backend\": \"ort\"", "\"backend\": \"tensorrt\"", "engines.target.tensorrt", SPECC_E_FORMAT },
    { "\"backend\": \"ort\"", "\"finalize\": true, \"backend\": \"ort\"", "run `specc finalize", SPECC_E_UNSUPPORTED },
    { "\"vocab\": 50", "\"vocab\": 47", "engines.target.vocab", SPECC_E_FORMAT }, { "[1, 2, 3, 5, 16]", "[1, 2, 2]", "widths", SPECC_E_FORMAT },
    { "\"ids\": 48", "\"ids\": 49", "holds 48 ids, but the manifest's tokenizer has 49", SPECC_E_FORMAT },
    { "\"eos\": [2, 3]", "\"eos\": [48]", "tokenizer.eos", SPECC_E_FORMAT }, { "\"tokenizer\"", "\"tokeniser\"", "manifest.tokenizer", SPECC_E_FORMAT },
    { "{\n", "{,", "line 1", SPECC_E_FORMAT } };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_manifest(cases[i].from, cases[i].to);
    EXPECT_ERROR(refused(), cases[i].code, cases[i].says);
  }
  unlink(at("manifest.json"));
  EXPECT_ERROR(refused(), SPECC_E_IO, "manifest.json cannot be read");
  specc_model *model;
  EXPECT_ERROR(specc_model_open(NULL, &model), SPECC_E_ARGUMENT, "folder");
}

/* Any byte of any file: each is told by name. */
static void test_changed_bytes(void) {
  static const char *const names[] = { "target.onnx", "target.onnx.data", "id_bytes.bin", "manifest.json" };
  write_manifest(NULL, NULL);
  for (int i = 0; i < 4; i++) {
    size_t n;
    char *data = read_text(at(names[i]), &n), says[64];
    snprintf(says, sizeof says, i < 3 ? "%s was changed" : "%s", names[i]);
    data[n / 2] ^= 1;
    write_bytes(at(names[i]), data, n);
    EXPECT_ERROR(refused(), SPECC_E_FORMAT, says);
    data[n / 2] ^= 1;
    write_bytes(at(names[i]), data, n + 1);
    EXPECT_ERROR(refused(), SPECC_E_FORMAT, i < 3 ? "bytes, but the manifest says" : "manifest.json");
    write_bytes(at(names[i]), data, n);
  }
}

/* ------------------------------------------------------------------ certificates */
static specc_model_info info_of(specc_model *model) {
  specc_model_info info = { 0 };
  EXPECT_OK(specc_model_info_get(model, &info));
  return info;
}

/* The certificate that the bundle opens with: 1 if one of the folder was put in force. */
static int found_in(const char *certificates, specc_certificate *c) {
  specc_model *model = NULL;
  if (!EXPECT_OK(try_with(certificates, 1, &model))) return -1;
  *c = info_of(model).certificate;
  specc_model_free(model);
  return c->kind != SPECC_CERT_NONE;
}

static specc_certificate exact(const specc_model *model) {
  specc_certificate c = { .kind = SPECC_CERT_BIT_EXACT, .law_width = 2, .n_widths = 5, .width_class = { 0, 1, 1, 1, -1 }, .threads = 1, .k = 4,
                          .max_abs_diff = { 0.1, 0, 0, 0, 1e308 * 10 }, .call_ms = { 1, 2, 3, 4, 5.5 }, .draft_ms = 0.25, .rows_compared = 1000,
                          .rows_different = { 7 }, .calls = 123, .law_hash = 0xfedcba9876543210u };
  memcpy(c.widths, model->target.widths, sizeof c.widths);
  return c;
}

static void test_certificates(void) {
  specc_model *model = NULL;
  char path[256], hard[64] = "{\"note\": \"\\u00e9\"}";
  write_manifest(NULL, NULL);
  if (!EXPECT_OK(try(0, &model))) return;
  specc_model_info info = info_of(model);
  EXPECT(!info.enabled && info.reasons == SPECC_R_UNCERTIFIED_DEVICE && info.n_ids == 48 && info.vocab == VOCAB && info.context == 64);
  EXPECT(!strcmp(info.engine_sha256, ZEROS) && strlen(info.digest) == 64 && info.n_eos == 2 && info.eos[1] == 3 && info.threads == 1);
  EXPECT(!strcmp(info.backend, "ort") && model->strip_leading_space && model->bytes[model->offsets[7]] == '7');
  specc_certificate c = exact(model), read;
  EXPECT_ERROR(specc_certificate_save(model, &c, "[1]", at("more"), path, sizeof path), SPECC_E_ARGUMENT, "not a JSON object");
  EXPECT_ERROR(specc_certificate_save(model, &c, "{} , \"kind\": 1", at("more"), path, sizeof path), SPECC_E_FORMAT, "report");
  EXPECT_ERROR(specc_certificate_save(model, &c, NULL, "/proc/nowhere", path, sizeof path), SPECC_E_IO, "cannot be written");
  EXPECT_OK(specc_certificate_save(model, &c, hard, at("more"), path, sizeof path));
  memset(&read, 0, sizeof read);
  EXPECT(found_in(at("more"), &read) == 1);
  EXPECT(read.kind == c.kind && read.law_width == 2 && read.k == 4 && read.threads == 1 && read.law_hash == c.law_hash && read.calls == 123);
  EXPECT(read.width_class[1] == read.width_class[3] && read.width_class[0] != read.width_class[1] && read.width_class[4] == -1);
  EXPECT(!memcmp(read.max_abs_diff, c.max_abs_diff, sizeof c.max_abs_diff) && !memcmp(read.call_ms, c.call_ms, sizeof c.call_ms) && read.draft_ms == 0.25);
  EXPECT(read.rows_different[0] == 7 && read.rows_compared == 1000 && read.tv_max == 0);
  specc_model_free(model);
  if (!EXPECT_OK(try(1, &model))) return;
  info = info_of(model);
  EXPECT(info.enabled && info.certificate.kind == SPECC_CERT_BIT_EXACT && info.certificate.law_width == 2);
  specc_model_free(model);
}

/* Puts the certificate with one change into a folder of its own and looks for it. */
static int find_changed(const char *text, const char *from, const char *to) {
  static char changed[1 << 16];
  specc_certificate c;
  const char *found = strstr(text, from);
  if (!found) return -1;
  snprintf(changed, sizeof changed, "%.*s%s%s", (int)(found - text), text, to, found + strlen(from));
  write_bytes(at("changed/x.json"), changed, strlen(changed));
  return found_in(at("changed"), &c);
}

static void test_passed_over(void) {
  static const char *const changes[][2] = {
    { "\"format\": 1", "\"format\": 2" }, { "\"backend\": \"ort\"", "\"backend\": \"o\"" }, { "\"threads\": 1", "\"threads\": 2" },
    { "\"fingerprint\": \"", "\"fingerprint\": \"0" }, { "\"engine_sha256\": \"0", "\"engine_sha256\": \"1" }, { "\"digest\": \"", "\"digest\": \"x" },
    { "\"backend_version\": \"1", "\"backend_version\": \"2" }, { "bit-exact", "exact" }, { "[[2, 3, 5], [1]]", "[[2, 3], [1]]" },
    { "[[2, 3, 5], [1]]", "[[2, 3, 5, 6], [1]]" }, { "[[2, 3, 5], [1]]", "[[2, 3, 5], [1, 2]]" }, { "\"law_width\": 2", "\"law_width\": 4" },
    { "\"k\": 4", "\"k\": 17" }, { "\"reasons\": []", "\"reasons\": [\"unheard-of\"]" }, { "\"tv_mean\": 0", "\"tv_mean\": -1" },
    { "\"law_hash\": \"f", "\"law_hash\": \"g" }, { "\"call_ms\": [1, ", "\"call_ms\": [" }, { "\"calls\": 123", "\"calls\": \"123\"" }, { "}\n", "" } };
  specc_model *model = NULL;
  specc_certificate c;
  char path[256];
  size_t n;
  if (!EXPECT_OK(try(0, &model))) return;
  c = exact(model);
  EXPECT_OK(specc_certificate_save(model, &c, NULL, at("saved"), path, sizeof path));
  char *text = strdup(read_text(path, &n));
  mkdir(at("changed"), 0777);
  EXPECT(find_changed(text, "\"k\": 4", "\"k\": 3") == 1);
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
    if (!EXPECT(find_changed(text, changes[i][0], changes[i][1]) == 0)) fprintf(stderr, "  %s -> %s\n", changes[i][0], changes[i][1]);
  EXPECT(found_in(at("nothing"), &c) == 0);
  free(text);
  specc_model_free(model);
}

/* Lint stays a reason whatever a certificate says; the other drafters open. */
static void test_kinds(void) {
  static const char *const kinds[] = { "\"kind\": \"none\"", "\"kind\": \"model\"", "\"kind\": \"early-exit\"" };
  specc_model *model = NULL;
  char path[256];
  for (int i = 0; i < 3; i++) {
    write_manifest("\"kind\": \"ngram\"", kinds[i]);
    if (!EXPECT_OK(try(0, &model))) continue;
    EXPECT(!strcmp(info_of(model).drafter, i ? "model" : ""));
    specc_model_free(model);
  }
  write_manifest("\"kind\": \"ngram\"", "\"kind\": \"oracle\"");
  EXPECT_ERROR(refused(), SPECC_E_FORMAT, "draft.kind");
  write_manifest("\"passed\": true", "\"passed\": false");
  if (!EXPECT_OK(try(0, &model))) return;
  EXPECT(info_of(model).reasons == (SPECC_R_LINT | SPECC_R_UNCERTIFIED_DEVICE));
  specc_certificate c = exact(model);
  EXPECT_OK(specc_certificate_save(model, &c, NULL, at("certificates"), path, sizeof path));
  specc_model_free(model);
  if (!EXPECT_OK(try(0, &model))) return;
  EXPECT(info_of(model).reasons == SPECC_R_LINT && !info_of(model).enabled);
  specc_model_free(model);
}

int main(void) {
  char clean[80];
  library = getenv("SPECC_ENGINE_LIBRARY");
  if (!mkdtemp(folder)) return 1;
  weights *w = make_weights();
  write_graph(at("target.onnx"), w, (variant){ 0 });
  free(w);
  write_table(48);
  test_manifest();
  test_changed_bytes();
  if (library) test_certificates();
  if (library) test_passed_over();
  if (library) test_kinds();
  snprintf(clean, sizeof clean, "rm -r %s", folder);
  EXPECT(system(clean) == 0);
  return library || failures ? finish("test_bundle") : (printf("test_bundle: engine part skipped, SPECC_ENGINE_LIBRARY is not set\n"), SKIP);
}
