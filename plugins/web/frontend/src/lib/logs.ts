// What `GET /v1/log` answers.

export interface LogLine {
  number: number;
  time: number;
  level: string;
  logger: string;
  node: string | null;
  text: string;
}

export interface LogReply {
  nodes: string[];
  last: number;
  data: LogLine[];
}
