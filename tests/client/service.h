/*
 * A scripted service in the test's own thread, and a client of it that has a request of three
 * tokens. The SDK does nothing outside its calls, so the service says exactly what a test wants
 * said, in the order it wants.
 */
#pragma once

#include "client/include/outrider.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { SERVICE_STREAMS = 3 };

struct service {
	char dir[64], endpoint[128];
	struct bus_server *socket;
	struct bus_address client;
	struct outrider *sdk;
	struct outrider_request *request;
	struct outrider_stream *stream; /* of a test that needs one */
	struct outrider_stream *streams[SERVICE_STREAMS]; /* of a test that needs several */
	int fd; /* outrider_client_fd, of a test that waits for it */
};

static inline void service_begin(struct service *s)
{
	struct error err = {""};

	if (bus_server(s->endpoint, BUS_CLIENTS, &s->socket, &err) < 0)
		fail_msg("%s", err.text);
}

static inline void service_die(struct service *s)
{
	bus_server_close(&s->socket);
}

/* The test's state: no stream has been started. */
static inline struct service *service_open(void **state)
{
	static const int32_t prompt[] = {1, 2, 3};
	struct service *s = calloc(1, sizeof *s);

	*state = s;
	snprintf(s->dir, sizeof s->dir, "/tmp/outrider-sdk-XXXXXX");
	assert_non_null(mkdtemp(s->dir));
	peers_client_endpoint(s->dir, s->endpoint, sizeof s->endpoint);
	service_begin(s);
	assert_int_equal(outrider_connect(s->dir, &s->sdk), 0);
	assert_int_equal(outrider_request_new(&s->request), 0);
	assert_int_equal(outrider_request_set_tokens(s->request, prompt, 3), 0);
	return s;
}

static inline int service_close(void **state)
{
	struct service *s = *state;
	char path[128];

	service_die(s);
	outrider_stream_free(&s->stream);
	for (int i = 0; i < SERVICE_STREAMS; i++)
		outrider_stream_free(&s->streams[i]);
	outrider_request_free(&s->request);
	outrider_close(&s->sdk);
	snprintf(path, sizeof path, "%s/client", s->dir);
	unlink(path);
	rmdir(s->dir);
	free(s);
	return 0;
}
