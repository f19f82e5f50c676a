#include "bench/src/picture.h"

#include <string.h>

static const char *ending(const char *path)
{
	const char *dot = strrchr(path, '.');

	return dot ? dot : "";
}

int picture_check(const char *path, struct error *err)
{
	bool png = strcmp(ending(path), ".png") == 0, svg = strcmp(ending(path), ".svg") == 0;

	if ((png || svg) && !strchr(path, '\'') && !strchr(path, '\n'))
		return 0;
	return error_set(
		err, EINVAL, "--plot %s: takes a name without ' that ends in .svg or .png", path);
}

FILE *picture_open(const char *path, unsigned width, unsigned height, struct error *err)
{
	FILE *gnuplot = popen("gnuplot", "we"); /* NOLINT(cert-env33-c): a fixed command */

	if (!gnuplot) {
		error_set(err, errno, "gnuplot: %s", strerror(errno));
		return NULL;
	}
	fprintf(gnuplot, "set terminal %s size %u,%u\nset output '%s'\n",
		strcmp(ending(path), ".png") == 0 ? "pngcairo" : "svg background 'white'", width,
		height, path);
	return gnuplot;
}

int picture_close(FILE *gnuplot, struct error *err)
{
	int status = pclose(gnuplot);

	if (status == 0)
		return 0;
	return error_set(
		err, EIO, "gnuplot ended with status %d; is gnuplot-nox installed?", status);
}
