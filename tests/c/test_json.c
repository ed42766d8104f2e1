/* test_json.c - the JSON reader and escaper, SHA-256, the id-to-bytes reader, the device. No engine library
 * needed. */
#include "core/io/files.h"
#include "core/io/json.h"
#include "core/io/sha256.h"
#include "expect.h"
#include "specc_judge.h"

/* ------------------------------------------------------------------ what is read */
static void test_values(void) {
  static const char text[] =
      "{\"a\": [1, -2.5e1, 9223372036854775807, 9223372036854775808, true, false, null],\n \"b\": {\"c\": "
      "\"x\\u00e9\\ud83d\\ude00\\n\\/\"}, \"d\": \"\xc3\xa9\"}";
  json_document d;
  int64_t n;
  if (!EXPECT_OK(json_read("text", text, sizeof text - 1, &d))) return;
  const json *a = json_array(d.root, "a"), *v = a->first;
  EXPECT(a->n == 7 && json_int(v, 1, 1, &n) && n == 1);
  v = v->next, EXPECT(v->number == -25 && !json_int(v, -100, 100, &n));
  v = v->next,
  EXPECT(v->exact && v->integer == INT64_MAX && json_int(v, 0, INT64_MAX, &n) && !json_int(v, 0, 5, &n));
  v = v->next, EXPECT(!v->exact && v->number == 9223372036854775808.0);
  v = v->next, EXPECT(v->kind == JSON_BOOL && v->truth && v->next->kind == JSON_BOOL && !v->next->truth &&
                      v->next->next->kind == JSON_NULL);
  EXPECT(!strcmp(json_string(json_object(d.root, "b"), "c"), "x\xc3\xa9\xf0\x9f\x98\x80\n/"));
  EXPECT(!strcmp(json_string(d.root, "d"), "\xc3\xa9") && text[json_get(d.root, "d")->at] == '"');
  EXPECT(!json_get(d.root, "none") && !json_object(d.root, "a") && !json_string(NULL, "a"));
  json_free(&d);
}

static void test_refused(void) {
  static const struct {
    const char *text, *says;
  } cases[] = {{"", "line 1: a value"}, {"{", "a string was expected"}, {"[1,]", "a value"},
      {"[1 2]", "',' or ']'"}, {"{\"a\" 1}", "':'"}, {"{\"a\":1,}", "a string"},
      {"{\"a\":1,\"a\":2}", "twice"}, {"01", "follows"}, {"+1", "a value"}, {".5", "a value"},
      {"1.", "a value"}, {"1e", "a value"}, {"-", "a value"}, {"1e999", "too large"}, {"nul", "a value"},
      {"NaN", "a value"}, {"\"a", "inside a string"}, {"\"\\u0000\"", "bad escape"},
      {"\"\\ud800\"", "bad escape"}, {"\"\\udc00\"", "bad escape"}, {"\"\\ud800\\u0041\"", "bad escape"},
      {"\"\\x\"", "bad escape"}, {"\"\\", "bad escape"}, {"\"\t\"", "control"}, {"\"\xff\"", "not UTF-8"},
      {"\"\xc0\x80\"", "not UTF-8"}, {"\"\xed\xa0\x80\"", "not UTF-8"}, {"\"\xf4\x90\x80\x80\"", "not UTF-8"},
      {"\"\xe2\x82\"", "not UTF-8"}, {"[]\n\n x", "line 3: text follows"}};
  json_document d;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    EXPECT_ERROR(json_read("text", cases[i].text, strlen(cases[i].text), &d), SPECC_E_FORMAT, cases[i].says);
    EXPECT(!d.root && !d.arena);
  }
}

/* Inputs that would cost more than they should. */
static void test_limits(void) {
  static char text[JSON_MAX_BYTES + 1];
  size_t n = sizeof text;
  char *p = text;
  json_document d;
  memset(text, '[', n);
  EXPECT_ERROR(json_read("deep", text, 1000000, &d), SPECC_E_FORMAT, "nested");
  EXPECT_ERROR(json_read("long", text, n, &d), SPECC_E_FORMAT, "more than the");
  for (size_t i = 0; i < 2000004; i++) text[i] = i == 0 ? '[' : i % 2 ? '1' : ',';
  EXPECT_ERROR(json_read("many", text, 2000004, &d), SPECC_E_FORMAT, "1000000 values");
  for (int i = 0; i < 600; i++) p += snprintf(p, 16, "%s\"%d\":1", i ? "," : "{", i);
  EXPECT_ERROR(json_read("wide", text, (size_t)(p - text), &d), SPECC_E_FORMAT, "512 keys");
  memset(text, '1', 200);
  EXPECT_ERROR(json_read("digits", text, 200, &d), SPECC_E_FORMAT, "127 characters");
  memset(text, '[', 64), memset(text + 64, ']', 64);
  if (EXPECT_OK(json_read("deepest", text, 128, &d))) json_free(&d);
}

static void test_quote(void) {
  static const char hard[] = "a\"\\\n\x01\x7f\xc3\xa9\xf0\x9f\x98\x80";
  char out[128], small[8];
  json_document d;
  size_t n = json_quote(hard, out, sizeof out);
  EXPECT(n == strlen(out) && !strcmp(out, "\"a\\\"\\\\\\u000a\\u0001\\u007f\\u00e9\\ud83d\\ude00\""));
  if (EXPECT_OK(json_read("quoted", out, n, &d))) EXPECT(!strcmp(d.root->text, hard)), json_free(&d);
  EXPECT(json_quote(hard, small, sizeof small) == n && strlen(small) == 7);
  EXPECT(json_quote("", out, sizeof out) == 2 && !strcmp(out, "\"\""));
  EXPECT(json_quote("\xff\xc3", out, sizeof out) == 14 && !strcmp(out, "\"\\ufffd\\ufffd\""));
}

/* ------------------------------------------------------------------ hashes, tables, device */
static void hash(const char *text, size_t n, size_t piece, char hex[65]) {
  specc_sha256 h;
  specc_sha256_begin(&h);
  for (size_t i = 0; i < n; i += piece) specc_sha256_add(&h, text + i, piece < n - i ? piece : n - i);
  specc_sha256_end(&h, hex);
}

/* FIPS 180-4's examples, and that pieces do not matter. */
static void test_sha256(void) {
  char hex[65], again[65], *million = malloc(1000000);
  if (!million) abort();
  memset(million, 'a', 1000000);
  hash("", 0, 1, hex),
      EXPECT(!strcmp(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
  hash("abc", 3, 1, hex),
      EXPECT(!strcmp(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
  hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, 9, hex);
  EXPECT(!strcmp(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"));
  hash(million, 1000000, 1000000, hex),
      EXPECT(!strcmp(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
  for (size_t piece = 1; piece < 1000; piece = 2 * piece + 1)
    hash(million, 1000000, piece, again), EXPECT(!strcmp(hex, again));
  free(million);
}

static void test_id_bytes(void) {
  static const unsigned char good[] = {
      'S', 'P', 'C', 'B', 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 'a', 'b', 'c'};
  unsigned char bad[sizeof good];
  id_bytes t = {0};
  if (EXPECT_OK(id_bytes_read("table", good, sizeof good, &t))) {
    EXPECT(t.n == 2 && t.offsets[1] == 1 && t.offsets[2] == 3 && !memcmp(t.bytes, "abc", 3));
    free(t.offsets);
  }
  for (size_t n = 0; n < sizeof good; n++)
    EXPECT_ERROR(id_bytes_read("table", good, n, &t), SPECC_E_FORMAT, "table is not an id-to-bytes table");
  for (size_t i = 0; i < 24; i++) { /* every bit of the header counts */
    memcpy(bad, good, sizeof good);
    bad[i] ^= 0x80;
    EXPECT_ERROR(id_bytes_read("table", bad, sizeof bad, &t), SPECC_E_FORMAT, "id-to-bytes");
  }
}

static void test_device(void) {
  char name[256], fingerprint[65], again[65], tiny[4];
  EXPECT_OK(specc_device(name, sizeof name, fingerprint, sizeof fingerprint));
  EXPECT_OK(specc_device(NULL, 0, again, sizeof again));
  EXPECT_OK(specc_device(tiny, sizeof tiny, NULL, 0));
  EXPECT(name[0] && strlen(fingerprint) == 64 && !strcmp(fingerprint, again) && strlen(tiny) < 4);
}

int main(void) {
  test_values();
  test_refused();
  test_limits();
  test_quote();
  test_sha256();
  test_id_bytes();
  test_device();
  return finish("test_json");
}
