// What `GET /v1/settings` and `GET /v1/keys` answer.

export interface Setting {
  section: string;
  key: string;
  value: unknown;
  origin: "default" | "file" | "environment" | "flag";
  place: string | null;
  expected: string;
  description: string;
  secret: boolean;
}

export interface Settings {
  file: string | null;
  data: Setting[];
}

export const ROLES = ["user", "metrics", "admin"] as const;

export const LIMITS = ["max_concurrent", "max_per_minute", "max_output_tokens"] as const;

/** Each 0: none. */
export type Limits = Record<(typeof LIMITS)[number], number>;

export interface Key {
  id: string;
  role: (typeof ROLES)[number];
  name: string | null;
  limits: Limits;
}

export interface Keys {
  file: string | null;
  has_own_key: boolean;
  limits: Limits;
  data: Key[];
}

/** Return the settings of each section, of those that match a text and, if wanted, are not as by default. */
export function group(settings: readonly Setting[], wanted: string, isChanged: boolean): Map<string, Setting[]> {
  const lower = wanted.toLowerCase();
  const found = settings
    .filter((each) => !isChanged || each.origin !== "default")
    .filter((each) => `${each.section} ${each.key} ${each.description}`.toLowerCase().includes(lower));
  return Map.groupBy(found, (each) => each.section);
}
