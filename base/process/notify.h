/*
 * Reports this process's state to systemd by sd_notify's protocol: a datagram of lines to the socket that NOTIFY_SOCKET
 * names, a path or (with a leading @) an abstract name. Without NOTIFY_SOCKET all of it does nothing.
 */
#ifndef BASE_PROCESS_NOTIFY_H
#define BASE_PROCESS_NOTIFY_H

/* READY=1: the process has started up. status: one line for `systemctl status`. Any thread. */
void notify_ready(const char *status);

/* STOPPING=1, or RELOADING=1 for a process that restarts in place. */
void notify_stopping(void);
void notify_restarting(void);

/*
 * The first socket that systemd passes by socket activation (LISTEN_FDS): listening, non-blocking, close-on-exec. 0:
 * none. Call once.
 */
int notify_listener(void);

/*
 * WATCHDOG=1, if the unit wants it (WATCHDOG_USEC, for this process) and half of that time has passed since the last
 * one. Called by the loop whose progress matters, as often as it likes; cheap.
 */
void notify_alive(void);

#endif
