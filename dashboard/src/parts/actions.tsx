import { signal } from '@preact/signals'
import { useState } from 'preact/hooks'
import { type ApiError, act, type OperationView, type Verb } from '../api.ts'
import { asApiError } from '../polled.ts'
import { isReadOnly } from '../status.ts'
import { Dialog } from './dialog.tsx'

type Subject = Pick<OperationView, 'id' | 'state' | 'labels'>

interface ActionWords {
  readonly button: string
  readonly confirm: string
  readonly title: string
  readonly done: string
  /** What it means for the operation of a client, by the state that it is in. */
  readonly meaning: (state: OperationView['state']) => readonly string[]
}

const ACTIONS: Readonly<Record<Verb, ActionWords>> = {
  release: {
    button: 'Release',
    confirm: 'Release it',
    title: 'Release this operation?',
    done: 'Released. The next request with this key runs.',
    meaning: (state) => [
      'The record is forgotten, as if the request had never come: the next request with this key runs.',
      RELEASE_RISKS[state],
    ],
  },
  fail: {
    button: 'Mark failed',
    confirm: 'Mark it failed',
    title: 'Mark this operation as failed?',
    done: 'Marked as failed. Retries are told so.',
    meaning: () => [
      'Every retry with this key gets the answer below, and the handler does not run for it again. A client that still wants it done must ask with a new key.',
      'If the effect did take place after all, the client is told something untrue: look into the system behind it first.',
    ],
  },
  redact: {
    button: 'Redact',
    confirm: 'Redact it',
    title: 'Redact this operation?',
    done: 'Redacted. The claim stays.',
    meaning: () => [
      'Body, headers and labels are removed for good; that the key was used stays known.',
      'A retry with this key does not run. It gets no answer any more either, but is told that the answer was not kept.',
    ],
  },
}

const RELEASE_RISKS: Readonly<Record<OperationView['state'], string>> = {
  running:
    'It is running now, and will not be stopped: a retry that comes before it has ended runs beside it, and the effect may happen twice. Its own answer will not be kept.',
  unknown:
    'Nobody knows whether the first attempt took effect. If it did, the client’s retry does it a second time: look into the system behind it first.',
  settled: 'It was answered. A retry of the client does not get that answer again but does everything a second time.',
  expired: 'Its answer has expired. A late retry does everything a second time.',
}

const VERBS: Readonly<Record<OperationView['state'], readonly Verb[]>> = {
  running: ['release'],
  unknown: ['fail', 'release'],
  settled: ['redact', 'release'],
  expired: ['release'],
}

/** What it means was said before: whoever confirms it means it. */
const BODIES: Readonly<Record<Verb, (status: string, note: string) => object>> = {
  release: () => ({ force: true }),
  fail: (status, note) => ({ status: Number(status), note }),
  redact: () => ({}),
}

/** Said once, in the corner, and read out. */
export const notice = signal('')

interface ActionsProps {
  /** `absent`: there is nothing to do, but a question that is open stays open until it is answered. */
  readonly operation: Subject | (Omit<Subject, 'state'> & { readonly state: 'absent' })
  readonly onDone: () => void
}

export function Actions({ operation, onDone }: ActionsProps) {
  // As it was when the question was asked: that is what is answered.
  const [asked, setAsked] = useState<{ readonly verb: Verb; readonly subject: Subject } | undefined>(undefined)
  const subject = operation.state === 'absent' ? undefined : (operation as Subject)
  return (
    <div class="actions">
      {(subject === undefined ? [] : VERBS[subject.state]).map((verb) => (
        <button
          type="button"
          key={verb}
          disabled={isReadOnly.value}
          title={isReadOnly.value ? 'The admin API was started read-only.' : undefined}
          onClick={() => subject && setAsked({ verb, subject })}
        >
          {ACTIONS[verb].button} …
        </button>
      ))}
      {asked !== undefined && (
        <Confirmation
          verb={asked.verb}
          operation={asked.subject}
          onClose={() => setAsked(undefined)}
          onDone={() => {
            setAsked(undefined)
            notice.value = ACTIONS[asked.verb].done
            onDone()
          }}
        />
      )}
    </div>
  )
}

interface ConfirmationProps {
  readonly verb: Verb
  readonly operation: Subject
  readonly onClose: () => void
  readonly onDone: () => void
}

function Confirmation({ verb, operation, onClose, onDone }: ConfirmationProps) {
  const { id, state, labels } = operation
  const words = ACTIONS[verb]
  const [error, setError] = useState<ApiError | undefined>(undefined)
  const [isBusy, setBusy] = useState(false)
  const [status, setStatus] = useState('409')
  const [note, setNote] = useState('')
  const confirm = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault()
    setBusy(true)
    try {
      await act(id, verb, BODIES[verb](status, note))
      onDone()
    } catch (failure) {
      setError(asApiError(failure))
      setBusy(false)
    }
  }
  return (
    <Dialog title={words.title} onClose={onClose}>
      <p class="subject">
        {labels.method} {labels.route} <code>{labels.key ?? id}</code>
        {labels.principal !== undefined && <span> of {labels.principal}</span>}
      </p>
      {words.meaning(state).map((sentence) => (
        <p key={sentence}>{sentence}</p>
      ))}
      <form onSubmit={(event) => void confirm(event)}>
        {verb === 'fail' && (
          <div class="fields">
            <label>
              Status
              <input
                type="number"
                min="400"
                max="599"
                required
                value={status}
                onInput={({ currentTarget }) => setStatus(currentTarget.value)}
              />
            </label>
            <label class="wide">
              What the client is told (may be left empty)
              <input value={note} maxLength={500} onInput={({ currentTarget }) => setNote(currentTarget.value)} />
            </label>
          </div>
        )}
        {error !== undefined && (
          <p class="stale" role="alert">
            Nothing was changed: {error.message}
          </p>
        )}
        <div class="dialog-foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="strong" disabled={isBusy}>
            {words.confirm}
          </button>
        </div>
      </form>
    </Dialog>
  )
}
