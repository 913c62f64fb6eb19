/** The part of `JetStreamClient` (`@nats-io/jetstream` 3) that the store uses; the client of any version that fits is good. */
export interface NatsJetStream {
  publish(subject: string, payload: Uint8Array, options: NatsPublishOptions): Promise<NatsPubAck>
  jetstreamManager(checkAPI?: boolean): Promise<NatsManager>
  readonly consumers: {
    getPushConsumer(stream: string, options: NatsWatchOptions): Promise<NatsPushConsumer>
  }
}

export interface NatsPublishOptions {
  timeout: number
  msgID?: string
  expect?: { lastSubjectSequence: number }
}

export interface NatsPubAck {
  readonly seq: number
  readonly duplicate: boolean
}

export interface NatsManager {
  readonly streams: {
    info(stream: string, query?: { subjects_filter: string }): Promise<NatsStreamInfo>
    getMessage(stream: string, query: { last_by_subj: string }): Promise<NatsStoredMessage | null>
    purge(stream: string, options: { filter: string; seq: number }): Promise<unknown>
  }
}

export interface NatsStreamInfo {
  readonly config: {
    readonly retention: string
    readonly discard: string
    readonly max_age: number
    readonly max_bytes: number
    readonly max_msgs: number
    readonly max_msg_size?: number
    readonly num_replicas: number
    readonly duplicate_window: number
    readonly sealed?: boolean
    readonly mirror?: unknown
  }
  readonly state: { readonly subjects?: Readonly<Record<string, number>> }
}

export interface NatsStoredMessage {
  readonly seq: number
  readonly time: Date
  readonly data: Uint8Array
}

export interface NatsWatchOptions {
  filter_subjects: string
  deliver_policy: 'new'
  headers_only: boolean
}

export interface NatsPushConsumer {
  consume(options: { callback: (message: { readonly subject: string; readonly seq: number }) => void }): Promise<{
    close(): Promise<unknown>
    closed(): Promise<unknown>
  }>
}
