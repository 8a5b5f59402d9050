// Polygons for Plotly. One trace draws all shapes of one colour: closed outlines, filled, parted by nulls.
// Outlines are a filled shape with a smaller one on top, so that no trace needs a path of its own per node.

const ARC = 5; // points on a quarter of a circle, ends not counted

export class Outlines {
  constructor() {
    this.x = [];
    this.y = [];
  }

  polygon(points) {
    for (const [x, y] of points) {
      this.x.push(x);
      this.y.push(y);
    }
    this.x.push(points[0][0], null);
    this.y.push(points[0][1], null);
  }

  rect(x, y, w, h) {
    this.polygon([
      [x, y],
      [x + w, y],
      [x + w, y + h],
      [x, y + h],
    ]);
  }

  /** A rectangle with round corners. */
  round(x, y, w, h, radius) {
    const r = Math.min(radius, w / 2, h / 2);
    const points = [];
    const corner = (cx, cy, turn) => {
      for (let i = 0; i <= ARC + 1; i++) {
        const angle = (Math.PI / 2) * (turn + i / (ARC + 1));
        points.push([cx + r * Math.cos(angle), cy + r * Math.sin(angle)]);
      }
    };
    corner(x + w - r, y + r, 3);
    corner(x + w - r, y + h - r, 0);
    corner(x + r, y + h - r, 1);
    corner(x + r, y + r, 2);
    this.polygon(points);
  }

  hexagon(x, y, w, h, point) {
    const middle = y + h / 2;
    this.polygon([
      [x + point, y],
      [x + w - point, y],
      [x + w, middle],
      [x + w - point, y + h],
      [x + point, y + h],
      [x, middle],
    ]);
  }

  /** A line of a width through points, as a polygon; corners are mitred. */
  stroke(points, width) {
    const left = [];
    const right = [];
    points.forEach(([x, y], i) => {
      const before = direction(points[i - 1] ?? points[i], points[i - 1] ? points[i] : points[i + 1]);
      const after = points[i + 1] ? direction(points[i], points[i + 1]) : before;
      const [tx, ty] = unit(before[0] + after[0], before[1] + after[1]);
      const miter = width / 2 / Math.max(0.5, tx * after[0] + ty * after[1]);
      left.push([x - ty * miter, y + tx * miter]);
      right.push([x + ty * miter, y - tx * miter]);
    });
    this.polygon([...left, ...right.reverse()]);
  }

  /** A check mark and a cross, about `size` wide, centred. */
  check(x, y, size) {
    this.stroke(
      [
        [x - size / 2, y],
        [x - size / 8, y + size * 0.36],
        [x + size / 2, y - size * 0.4],
      ],
      1.8,
    );
  }

  cross(x, y, size) {
    const s = size / 2;
    this.stroke(
      [
        [x - s, y - s],
        [x + s, y + s],
      ],
      1.8,
    );
    this.stroke(
      [
        [x - s, y + s],
        [x + s, y - s],
      ],
      1.8,
    );
  }

  /** "Not counted": a line that ends at a bar. */
  cutoff(x, y, size) {
    this.stroke(
      [
        [x - size / 2, y],
        [x + size * 0.2, y],
      ],
      1.6,
    );
    this.stroke(
      [
        [x + size / 2, y - size / 2],
        [x + size / 2, y + size / 2],
      ],
      1.8,
    );
  }
}

const unit = (x, y) => {
  const length = Math.hypot(x, y) || 1;
  return [x / length, y / length];
};
const direction = ([x1, y1], [x2, y2]) => unit(x2 - x1, y2 - y1);

/** From the right edge of one node to the left edge of another: straight, or round one corner each way. */
export function elbow(x1, y1, x2, y2, turn, radius = 6) {
  if (Math.abs(y1 - y2) < 0.5)
    return [
      [x1, y1],
      [x2, y2],
    ];
  const r = Math.min(radius, Math.abs(y2 - y1) / 2, (x2 - turn) / 2);
  const down = Math.sign(y2 - y1);
  const points = [[x1, y1]];
  const bend = (cx, cy, from) => {
    for (let i = 0; i <= 4; i++) {
      const angle = from + (Math.PI / 2) * (i / 4);
      points.push(
        from === 0
          ? [cx + r * Math.sin(angle), cy - down * r * Math.cos(angle)]
          : [cx - r * Math.sin(angle), cy - down * r * Math.cos(angle)],
      );
    }
  };
  bend(turn - r, y1 + down * r, 0);
  bend(turn + r, y2 - down * r, Math.PI / 2);
  points.push([x2, y2]);
  return points;
}

/** Traces of the layers that have shapes, from back to front; `order`: [name, design token of the colour]. */
export function fills(order, layers, colours) {
  return order
    .filter(([name]) => layers[name].x.length > 0)
    .map(([name, colour]) => ({
      uid: name,
      type: "scatter",
      mode: "none",
      fill: "toself",
      fillcolor: colours[colour],
      x: layers[name].x,
      y: layers[name].y,
      hoverinfo: "skip",
      line: { simplify: false },
      cliponaxis: false,
    }));
}
