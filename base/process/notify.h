/*
 * Telling systemd how this process is, by sd_notify's protocol: a datagram of lines to the socket that NOTIFY_SOCKET
 * names, a path or (with a leading @) an abstract name. Without NOTIFY_SOCKET all of it does nothing.
 */
#ifndef BASE_PROCESS_NOTIFY_H
#define BASE_PROCESS_NOTIFY_H

/* READY=1: from now on it does what it was started for. status: one line for `systemctl status`. Any thread. */
void notify_ready(const char *status);

/* STOPPING=1, or RELOADING=1 for a process that restarts in place. */
void notify_stopping(void);
void notify_restarting(void);

/*
 * The first socket that systemd passes to a service that it starts by one (LISTEN_FDS): listening, set not to block and
 * closed by exec. 0: there is none. Once.
 */
int notify_listener(void);

/*
 * WATCHDOG=1, if the unit wants it (WATCHDOG_USEC, for this process) and half of that time has passed since the last
 * one. To be called by the loop whose progress is what matters, as often as it likes; cheap.
 */
void notify_alive(void);

#endif
