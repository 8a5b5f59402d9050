// The websocket: one connection, opened again by itself when it breaks.

const FIRST_WAIT = 500; // ms before the first new attempt; doubled up to LONGEST_WAIT
const LONGEST_WAIT = 8000;

export class Socket {
  /**
   * @param {object} handlers
   *   frame(message, received): a frame, and when it arrived (performance.now())
   *   state(state, retryAt): "connecting" | "open" | "closed"; when the next attempt is due
   *   resume(): the message that continues what was being watched, or null
   */
  constructor({ frame, state, resume }) {
    this.handlers = { frame, state, resume };
    this.wait = FIRST_WAIT;
    this.timer = 0;
    this.socket = null;
    addEventListener("online", () => this.retryNow());
    document.addEventListener("visibilitychange", () => document.hidden || this.retryNow());
    this.connect();
  }

  connect() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.handlers.state("connecting", null);
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/ws/decode`);
    this.socket = socket;
    socket.onopen = () => {
      this.wait = FIRST_WAIT;
      this.handlers.state("open", null);
      const message = this.handlers.resume();
      if (message) this.send(message);
    };
    socket.onmessage = ({ data }) => {
      const received = performance.now();
      this.handlers.frame(JSON.parse(data), received);
    };
    socket.onclose = () => {
      if (this.socket === socket) this.retryLater();
    };
  }

  retryLater() {
    this.socket = null;
    const wait = this.wait * (0.8 + 0.4 * Math.random()); // many pages of one server must not return at once
    this.wait = Math.min(this.wait * 2, LONGEST_WAIT);
    this.handlers.state("closed", Date.now() + wait);
    this.timer = setTimeout(() => this.connect(), wait);
  }

  retryNow() {
    if (this.timer) this.connect();
  }

  /** Send a message; false when there is no connection. */
  send(message) {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(message));
    return true;
  }
}
