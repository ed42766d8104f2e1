/* check.h - the three lines of test framework that the C tests share. */
#ifndef CHECK_H
#define CHECK_H
#include <stdio.h>
#include <stdlib.h>
#define CHECK(condition) do { if (!(condition)) { fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, specc_last_error()); exit(1); } } while (0)
#endif
